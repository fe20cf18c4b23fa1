package app

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
)

// manualCommand writes the manual pages that a package of the binary installs.
func (h *Host) manualCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man FOLDER",
		Short:   "Write the manual pages of all commands into a folder",
		Example: h.examples("man dist/man"),
		Hidden:  true, // for those who build packages
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			for name, page := range h.manual(cmd.Root()) {
				if err := os.WriteFile(filepath.Join(args[0], name), []byte(page), 0o644); err != nil { //nolint:gosec // a public text
					return err
				}
			}
			return nil
		},
	}
}

// manual returns a page of section 1 for each command that the help shows, by the name of its file.
func (h *Host) manual(root *cobra.Command) map[string]string {
	m := manual{version: h.build().Version, process: h.manualOfTheProcess(), pages: map[string]string{}}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if made, err := time.Parse(time.RFC3339, s.Value); s.Key == "vcs.time" && err == nil {
				m.date = made.UTC().Format(time.DateOnly)
			}
		}
	}
	m.add(root)
	return m.pages
}

// manualOfTheProcess has the sections that hold for all commands.
func (h *Host) manualOfTheProcess() string {
	var p page
	p.section("EXIT STATUS")
	for _, row := range []struct {
		code int
		what string
	}{
		{ExitOK, "done; run: it was drained after SIGTERM"},
		{ExitBad, "it ran, and the answer is bad"},
		{ExitUsage, "usage or settings, or a file or folder that may not be opened"},
		{ExitUnavailable, "a server is not available"},
		{ExitInterrupted, "interrupted"},
	} {
		p.item(fmt.Sprint(row.code), row.what)
	}
	p.section("ENVIRONMENT")
	p.item(h.configVariable(), "names the settings file of a command without --config and --profile")
	p.item(h.Variable("log.level")+", …", "a setting by its path: "+h.Variable("log.level")+" is log.level")
	p.item("NOTIFY_SOCKET, WATCHDOG_USEC", "run tells systemd when it is ready, that it is alive, and when it stops (sd_notify(3))")
	p.item("CREDENTIALS_DIRECTORY", "the path of a file in the settings may begin with $CREDENTIALS_DIRECTORY/; beside a unit of systemd, root sets it to /etc/credstore")
	return p.String()
}

// manual collects the pages of one binary.
type manual struct {
	version, date string // date is empty in a build outside of a repository
	process       string // sections of the first page
	pages         map[string]string
}

func manualName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// shown reports whether a command has a page: cobra's own commands of each shell have none.
func shown(c *cobra.Command) bool {
	return c.IsAvailableCommand() && c.Name() != "help" && (c.Parent() == nil || c.Parent().Name() != "completion")
}

func (m *manual) add(c *cobra.Command) {
	c.InitDefaultHelpFlag()
	name := manualName(c)
	var p page
	p.line(`.TH "%s" "1" "%s" "%s %s"`, roff(strings.ToUpper(name)), roff(m.date), roff(c.Root().Name()), roff(m.version))
	p.section("NAME")
	p.line(`%s \- %s`, roff(name), roff(c.Short))
	p.section("SYNOPSIS")
	p.literal(c.UseLine())
	if c.Long != "" {
		p.section("DESCRIPTION")
		for paragraph := range strings.SplitSeq(c.Long, "\n\n") {
			p.paragraph(paragraph)
		}
	}
	related := []*cobra.Command{}
	if c.HasParent() {
		related = append(related, c.Parent())
	}
	p.commands(c)
	p.flags("OPTIONS", c.NonInheritedFlags().FlagUsagesWrapped(helpColumns))
	p.flags("GLOBAL OPTIONS", c.InheritedFlags().FlagUsagesWrapped(helpColumns))
	if c.Example != "" {
		p.section("EXAMPLES")
		p.literal(strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	if !c.HasParent() {
		p.WriteString(m.process)
	}
	for _, sub := range c.Commands() {
		if shown(sub) {
			related = append(related, sub)
			m.add(sub)
		}
	}
	if len(related) > 0 {
		p.section("SEE ALSO")
		names := []string{}
		for _, r := range related {
			names = append(names, roff(manualName(r))+"(1)")
		}
		slices.Sort(names)
		p.line("%s", strings.Join(names, ", "))
	}
	m.pages[name+".1"] = p.String()
}

// page is a manual page in the language of roff (man(7)).
type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *page) section(name string) { p.line(".SH %s", name) }

// paragraph is filled, unless it has an indented line.
func (p *page) paragraph(text string) {
	if strings.HasPrefix(text, " ") || strings.Contains(text, "\n ") {
		p.literal(text)
		return
	}
	p.line(".PP\n%s", roff(text))
}

func (p *page) literal(text string) { p.line(".PP\n.nf\n%s\n.fi", roff(text)) }

func (p *page) item(term, text string) { p.line(".TP\n%s\n%s", roff(term), roff(text)) }

func (p *page) commands(c *cobra.Command) {
	subs := slices.DeleteFunc(slices.Clone(c.Commands()), func(sub *cobra.Command) bool { return !shown(sub) })
	if len(subs) == 0 {
		return
	}
	p.section("COMMANDS")
	for _, sub := range subs {
		p.item(sub.Name(), sub.Short)
	}
}

func (p *page) flags(name, usages string) {
	if usages != "" {
		p.section(name)
		p.literal(strings.TrimRight(usages, "\n"))
	}
}

// roff returns text that roff shows as it is: hyphens stay hyphens, letters outside of ASCII are named, and
// no line is a request.
func roff(text string) string {
	var b strings.Builder
	begin := true // of a line
	for _, r := range text {
		switch {
		case begin && (r == '.' || r == '\''):
			b.WriteString(`\&` + string(r))
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '"':
			b.WriteString(`\(dq`)
		case r > unicode.MaxASCII:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
		begin = r == '\n'
	}
	return b.String()
}
