package app

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// effect is what `new once` has to know of a far side.
type effect struct {
	Repeat           string // of the package once: ByKey, …
	Lookup           bool
	KeyTTL, UnderWay string // as Go expressions; empty: not needed
	keyTTL, underWay time.Duration
}

// Texts of the README.
func (e effect) KeyTTLText() string   { return "`" + e.keyTTL.String() + "`" }
func (e effect) UnderWayText() string { return "`" + e.underWay.String() + "`" }

// Unclear says what follows an answer that is not clear.
func (e effect) Unclear() string {
	return map[string]string{
		"ByKey":    "is sent again with the same key and the same bytes, and looked up when the key is old",
		"ByLookup": "is looked up, and sent again only if it was not found",
		"Never":    "is unknown: an operator decides (`once resolve`)",
		"Always":   "is sent again, so it may happen twice",
	}[e.Repeat]
}

// repeats are the values of --repeat.
var repeats = map[string]string{"key": "ByKey", "lookup": "ByLookup", "never": "Never", "always": "Always"} //nolint:gochecknoglobals // a constant, but Go has none of this type

var kindName = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*$`)

// onceSkeleton is that of `new once`.
func onceSkeleton() skeleton {
	return skeleton{
		files: [][2]string{{"PACKAGE.go", "once.go"}, {"PACKAGE_test.go", "once_test.go"}, {"README.md", "once_README.md"}},
		main:  [][2]string{{"main.go", "once_main.go"}, {"embedded.yaml", "once_embedded.yaml"}, {"production.yaml", "production.yaml"}},
		add:   "once_add.txt",
		wired: "The binary has the kind of effects %[1]s, once plugins.%[1]s.enabled and plugins.%[1]s.api.url are set.",
	}
}

func (h *Host) newOnceCommand(dir *string) *cobra.Command {
	var repeat string
	var keyTTL, underWay time.Duration
	cmd := &cobra.Command{
		Use:   "once NAME",
		Short: "Write a handler whose side effect happens once, with its test",
		Long: `Write a handler whose side effect happens once, with its test.

What can be promised depends on the API that is called, so the command asks
for it: on a terminal with two questions, otherwise by --repeat and one of
--key-ttl and --under-way.`,
		Example: h.examples("new once invoice --repeat key --key-ttl 23h", "new once parcel --repeat lookup --under-way 2m", "new once mail --repeat never"),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ask := questions{out: h.opts.Stderr}
			if in := cmd.InOrStdin(); isTerminal(h.opts.Stderr) && isFileTerminal(in) {
				ask.in = bufio.NewReader(in)
			}
			e, err := ask.effect(repeat, keyTTL, underWay)
			if err == nil && (!kindName.MatchString(args[0]) || len(args[0]) > 31) {
				err = fmt.Errorf("NAME must be up to 31 lower-case letters and digits, with - between words, got %q", args[0])
			}
			if err == nil {
				err = h.newHandler(cmd.Context(), *dir, handler{Name: args[0], effect: e, skeleton: onceSkeleton()})
			}
			return newError(cmd, err)
		},
	}
	cmd.Flags().StringVar(&repeat, "repeat", "", "what the API does with a second `request`:\nkey (it knows an idempotency key),\nlookup (it can be asked), never, always")
	cmd.Flags().DurationVar(&keyTTL, "key-ttl", 0, "how long it surely knows a key, with --repeat key")
	cmd.Flags().DurationVar(&underWay, "under-way", 0, "how long a request may be under way, with --repeat\nlookup")
	return cmd
}

func isFileTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	return ok && isTerminal(f)
}

// questions asks a person for what the flags leave open. in is nil without a terminal.
type questions struct {
	in  *bufio.Reader
	out io.Writer
}

func (q questions) effect(repeat string, keyTTL, underWay time.Duration) (e effect, err error) {
	if repeat == "" {
		repeat, err = q.ask("--repeat", `What does the API do with a second request for the same effect?
  key     it knows an idempotency key and executes it once
  lookup  it has no keys, but can be asked whether the effect happened
  never   neither: an unclear effect waits for an operator (at most once)
  always  neither: an unclear effect is sent again (at least once)
`)
		if err != nil {
			return e, err
		}
	}
	e.Repeat = repeats[repeat]
	e.Lookup = e.Repeat == "ByKey" || e.Repeat == "ByLookup"
	switch e.Repeat {
	case "":
		return e, fmt.Errorf("--repeat must be key, lookup, never or always, got %q", repeat)
	case "ByKey":
		if e.keyTTL, err = q.duration("--key-ttl", keyTTL, "For how long does it surely know an idempotency key? An older request is looked up, and never sent again (such as 23h): "); err != nil {
			return e, err
		}
		e.KeyTTL = goDuration(e.keyTTL)
	case "ByLookup":
		if e.underWay, err = q.duration("--under-way", underWay, "For how long may a request be under way? A lookup proves nothing before (such as 2m): "); err != nil {
			return e, err
		}
		e.UnderWay = goDuration(e.underWay)
	}
	return e, nil
}

func (q questions) duration(flag string, given time.Duration, question string) (time.Duration, error) {
	if given == 0 {
		text, err := q.ask(flag, question)
		if err != nil {
			return 0, err
		}
		if given, err = time.ParseDuration(text); err != nil {
			return 0, fmt.Errorf("%s must be a time such as 90s or 23h, got %q", flag, text)
		}
	}
	if given <= 0 {
		return 0, fmt.Errorf("%s must be > 0, got %s", flag, given)
	}
	return given, nil
}

// ask returns the answer of a person.
func (q questions) ask(flag, question string) (string, error) {
	if q.in == nil {
		return "", fmt.Errorf("%s must be given, because it is a fact about the API that has no safe default", flag)
	}
	fmt.Fprint(q.out, question)
	if strings.HasSuffix(question, "\n") {
		fmt.Fprint(q.out, "> ")
	}
	line, err := q.in.ReadString('\n')
	if err != nil && line == "" {
		return "", fmt.Errorf("%s: no answer: %w", flag, err)
	}
	return strings.TrimSpace(line), nil
}

// goDuration returns d as a Go expression.
func goDuration(d time.Duration) string {
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{time.Hour, "time.Hour"}, {time.Minute, "time.Minute"}, {time.Second, "time.Second"}, {time.Millisecond, "time.Millisecond"}} {
		if d%unit.size == 0 {
			if d == unit.size {
				return unit.name
			}
			return fmt.Sprintf("%d * %s", d/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%d", d)
}
