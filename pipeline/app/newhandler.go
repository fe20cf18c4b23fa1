package app

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"go/format"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"golang.org/x/mod/modfile"
)

//go:embed templates/*.tmpl
var templates embed.FS

// handler is what the templates of a new handler know.
type handler struct {
	Name    string // of the plugin and its folder
	Package string
	Import  string // path of the package
}

// Exported is the name as it stands in Go's exported names.
func (d handler) Exported() string {
	var b strings.Builder
	for word := range strings.FieldsFuncSeq(d.Name, func(r rune) bool { return r == '-' || r == '_' }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

var handlerName = regexp.MustCompile(`^[a-z][a-z0-9]*([-_][a-z0-9]+)*$`)

func (h *Host) newCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "new", Short: "Write the skeleton of something new"}
	var dir string
	handlerCmd := &cobra.Command{
		Use:     "handler NAME",
		Short:   "Write handlers/NAME: a handler plugin with a passing test",
		Example: h.examples("new handler invoices"),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := h.newHandler(dir, args[0])
			if err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			return nil
		},
	}
	handlerCmd.Flags().StringVar(&dir, "dir", ".", "a folder of the Go module to write into")
	_ = handlerCmd.MarkFlagDirname("dir")
	cmd.AddCommand(handlerCmd)
	return cmd
}

// newHandler writes handlers/name into the module that dir belongs to.
func (h *Host) newHandler(dir, name string) error {
	if !handlerName.MatchString(name) {
		return fmt.Errorf("NAME must be lower-case letters and digits, with - or _ between words, got %q", name)
	}
	root, module, err := findModule(dir)
	if err != nil {
		return err
	}
	target := filepath.Join(root, "handlers", name)
	d := handler{
		Name: name, Package: strings.NewReplacer("-", "", "_", "").Replace(name),
		Import: path.Join(module, "handlers", name),
	}
	// The test imports these beside the new package.
	taken := []string{"context", "errors", "main", "message", "pipeline", "pipelinetest", "require", "testing", "time"}
	if token.IsKeyword(d.Package) || slices.Contains(taken, d.Package) || strings.HasSuffix(name, "_test") {
		return fmt.Errorf("NAME can't be %q: a Go package can't have that name here", name)
	}
	files, err := d.render()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("new handler: %w", err)
	}
	if err := os.Mkdir(target, 0o755); errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already", target)
	} else if err != nil {
		return fmt.Errorf("new handler: %w", err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(target, f.name), f.text, 0o644); err != nil { //nolint:gosec // source code
			return fmt.Errorf("new handler: %w", err)
		}
		fmt.Fprintln(h.o.Stdout, "wrote", filepath.Join(target, f.name))
	}
	return h.nextSteps(d)
}

type sourceFile struct {
	name string
	text []byte
}

func (d handler) render() ([]sourceFile, error) {
	all, err := template.ParseFS(templates, "templates/*.tmpl")
	if err != nil {
		return nil, fmt.Errorf("new handler: %w", err)
	}
	var out []sourceFile
	for _, name := range []string{"doc.go", "handler.go", "handler_test.go", "README.md"} {
		var b bytes.Buffer
		if err := all.ExecuteTemplate(&b, name+".tmpl", d); err != nil {
			return nil, fmt.Errorf("new handler: %w", err)
		}
		text := b.Bytes()
		if strings.HasSuffix(name, ".go") {
			if text, err = format.Source(text); err != nil {
				return nil, fmt.Errorf("new handler: %s: %w", name, err)
			}
		}
		out = append(out, sourceFile{name, text})
	}
	return out, nil
}

// nextSteps tells which lines make the handler a part of the binary.
func (h *Host) nextSteps(d handler) error {
	t, err := template.ParseFS(templates, "templates/next.txt.tmpl")
	if err != nil {
		return fmt.Errorf("new handler: %w", err)
	}
	return t.Execute(h.o.Stdout, d)
}

// findModule returns the root folder and the path of the Go module that dir belongs to.
func findModule(dir string) (root, module string, err error) {
	root, err = filepath.Abs(dir)
	if err != nil {
		return "", "", fmt.Errorf("new handler: %w", err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(root, "go.mod"))
		if err == nil {
			if module = modfile.ModulePath(text); module == "" {
				return "", "", fmt.Errorf("%s names no module", filepath.Join(root, "go.mod"))
			}
			return root, module, nil
		}
		up := filepath.Dir(root)
		if !errors.Is(err, fs.ErrNotExist) || up == root {
			return "", "", fmt.Errorf("no go.mod in %s or above it: run this inside a Go module", dir)
		}
		root = up
	}
}
