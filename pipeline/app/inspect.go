package app

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/configs"
	"github.com/millrace-io/millrace/pipeline/setting"
)

type verdict struct {
	Valid   bool             `json:"valid"`
	Profile string           `json:"profile"`
	Layers  []string         `json:"layers"`
	Errors  []*configs.Error `json:"errors"`
	Unset   []*configs.Error `json:"unset_secrets,omitempty"`
}

func (h *Host) validateCommand() *cobra.Command {
	var secrets allowUnset
	cmd := h.JSONFlag(h.ServiceFlags(&cobra.Command{
		Use:   "validate",
		Short: "Check the settings offline; report all errors at once",
		Long: "Check the settings offline, and report all errors at once.\n\n" +
			"The files that the settings name are read as the user of this command. Root may read all of them, so run it as the user of the service.",
		Example: h.examples("validate --config settings.yaml", "validate --config settings.yaml --allow-unset-secrets"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := h.read(cmd, nil)
			v := verdict{Layers: []string{}, Errors: []*configs.Error{}}
			var unset []*configs.Error
			if l != nil {
				v.Profile, v.Layers = l.Document.Profile(), append(v.Layers, l.layers...)
				unset, err = secrets.split(err)
			}
			if err == nil {
				_, err = h.registerWithout(l, secrets, unset)
			}
			v.Valid, v.Unset, v.Errors = err == nil, unset, append(v.Errors, configs.Flatten(err)...)
			switch {
			case h.JSON(cmd):
				if err := h.WriteJSON(v); err != nil || v.Valid {
					return err
				}
				return &ExitError{Code: ExitUsage}
			case err != nil:
				return err
			}
			from := "the defaults"
			if len(v.Layers) > 0 {
				from = strings.Join(v.Layers, ", ")
			}
			h.warnUnset(unset)
			_, err = fmt.Fprintf(h.opts.Stdout, "The settings are valid (%s).\n", from)
			return err
		},
	}))
	secrets.flag(cmd)
	return cmd
}

// allowUnset is the flag --allow-unset-secrets of commands that open nothing.
type allowUnset struct{ on *bool }

func (a *allowUnset) flag(cmd *cobra.Command) {
	a.on = cmd.Flags().Bool("allow-unset-secrets", false, "list secrets and files that are not here, such as in CI, instead of refusing them")
}

// split takes the secrets that are not set and the files that do not exist out of err, if the flag is given.
func (a allowUnset) split(err error) (unset []*configs.Error, rest error) {
	if err == nil || !*a.on {
		return nil, err
	}
	var errs []error
	for _, e := range configs.Flatten(err) {
		if setting.NotHere(e.Problem) {
			unset = append(unset, e)
		} else {
			errs = append(errs, e)
		}
	}
	return unset, errors.Join(errs...)
}

func (h *Host) warnUnset(unset []*configs.Error) {
	for _, e := range unset {
		fmt.Fprintf(h.opts.Stderr, "not here: %s: %s\n", e.Path, e.Problem)
	}
}

func (h *Host) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Write the JSON Schema of the settings file, for editors",
		Example: h.examples("schema > settings.schema.json"),
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := configs.Schema(h.opts.Name, configs.Profiles(h.opts.Profiles), Sections(h.opts.Name, h.opts.Plugins...))
			if err != nil {
				return err
			}
			_, err = h.opts.Stdout.Write(text)
			return err
		},
	}
}

type build struct {
	Name string `json:"name"`
	// Version is that of the module, and ends with the build id where a version alone does not tell builds apart.
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (h *Host) build() build {
	b := build{Name: h.opts.Name, Version: h.opts.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if b.Version == "" && ok {
		b.Version = info.Main.Version
	}
	if b.Version == "" {
		b.Version = "unknown"
	}
	if ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	if b.Modified || b.Version == "unknown" || b.Version == "(devel)" { // many binaries have this version
		if id := ownBuildID(); id != "" {
			b.Version += "+" + id
		}
	}
	return b
}

// ownBuildID is that of this program.
func ownBuildID() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	program, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = program.Close() }() // it was only read
	return buildID(program)
}

// buildID returns the hash of a program, which is the end of the note that Go's linker writes near the beginning of an ELF
// file. Empty: it has none.
func buildID(program io.Reader) string {
	const note = "\x04\x00\x00\x00Go\x00\x00" // its type and its name, after the length of the id
	text, _ := io.ReadAll(io.LimitReader(program, 64<<10))
	at := bytes.Index(text, []byte(note))
	if at < 4 {
		return ""
	}
	id := text[at+len(note):]
	id = id[:min(len(id), int(binary.LittleEndian.Uint32(text[at-4:])))]
	return string(id[bytes.LastIndexByte(id, '/')+1:])
}

func (h *Host) versionCommand() *cobra.Command {
	return h.JSONFlag(&cobra.Command{
		Use:     "version",
		Short:   "Show the version",
		Example: h.examples("version", "version --json"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return h.Show(cmd, h.build(), func(out io.Writer) error {
				_, err := fmt.Fprintln(out, h.versionLine())
				return err
			})
		},
	})
}

func (h *Host) versionLine() string {
	b := h.build()
	line := b.Name + " " + b.Version
	if b.Commit != "" {
		line += " (" + b.Commit + ")"
	}
	return fmt.Sprintf("%s, %s, %s", line, b.Go, b.Platform)
}
