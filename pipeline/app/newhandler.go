package app

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/sorted"
)

//go:embed templates/*.tmpl
var templates embed.FS

type handler struct {
	Name    string // of the plugin and its folder
	Package string
	Import  string // path of the package
	Binary  string // of another module

	Main      string // of the binary, if that exists
	HasLedger bool   // in Main

	effect // of a kind of effects
	skeleton
}

// skeleton is what a command writes. The files are names and their templates.
type skeleton struct {
	files, main [][2]string
	add         string // the template of what a binary that exists lacks
	wired       string // what the service has afterwards; %[1]s is the name
}

// handlerSkeleton is that of `new handler`.
func handlerSkeleton() skeleton {
	return skeleton{
		files: [][2]string{{"doc.go", "doc.go"}, {"handler.go", "handler.go"}, {"handler_test.go", "handler_test.go"}, {"README.md", "README.md"}},
		main:  [][2]string{{"main.go", "main.go"}, {"embedded.yaml", "embedded.yaml"}, {"production.yaml", "production.yaml"}},
		add:   "add.txt",
		wired: "The binary has the routes %[1]s and %[1]s.retry.",
	}
}

// Exported returns the name in the form of Go's exported names.
func (d handler) Exported() string {
	var b strings.Builder
	for word := range strings.FieldsFuncSeq(d.Name, func(r rune) bool { return r == '-' || r == '_' }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

var handlerName = regexp.MustCompile(`^[a-z][a-z0-9]*([-_][a-z0-9]+)*$`)

func (h *Host) newCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "new", Short: "Write the skeleton of something new", Example: h.examples("new handler invoices")}
	var dir string
	handlerCmd := &cobra.Command{
		Use:     "handler NAME",
		Short:   "Write a handler with a retry topic, dead letters and a test",
		Example: h.examples("new handler invoices"),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return newError(cmd, h.newHandler(cmd.Context(), dir, handler{Name: args[0], skeleton: handlerSkeleton()}))
		},
	}
	cmd.AddCommand(handlerCmd, h.newOnceCommand(&dir))
	for _, c := range cmd.Commands() {
		c.Flags().StringVar(&dir, "dir", ".", "a folder in the Go module, below whose root the files are written")
		_ = c.MarkFlagDirname("dir")
	}
	return cmd
}

// newError returns the error of a command that writes a skeleton. What is not make's is a wrong command line.
func newError(cmd *cobra.Command, err error) error {
	if err == nil || errors.As(err, new(*exec.ExitError)) {
		return err
	}
	return &usageError{err, cmd.CommandPath()}
}

// newHandler writes the files of d into handlers/NAME of the module that dir belongs to. In a repository with
// wiringFile it also adds the plugin to the service. Otherwise it writes a binary.
func (h *Host) newHandler(ctx context.Context, dir string, d handler) error {
	name := d.Name
	if !handlerName.MatchString(name) {
		return fmt.Errorf("NAME must be lower-case letters and digits, with - or _ between words, got %q", name)
	}
	root, module, err := findModule(dir)
	if err != nil {
		return err
	}
	target := filepath.Join(root, "handlers", name)
	if _, err := os.Stat(target); err == nil {
		return fmt.Errorf("%s exists already: edit it, or choose another NAME", target)
	}
	d.Package = strings.NewReplacer("-", "", "_", "").Replace(name)
	d.Import, d.Binary = path.Join(module, "handlers", name), path.Base(module)
	// Generated files import these or name their variables so, next to the new package.
	taken := []string{
		"app", "console", "context", "dead", "deadletter", "effects", "embed", "embedded", "errors", "fmt", "http", "httptest", "kafka", "ledger", "main", "once", "oncehttp", "oncetest",
		"os", "pipeline", "pipelinetest", "profiles", "require", "rules", "server", "setting", "sqldb", "sse", "streams", "sync", "telemetry", "testing", "time", "token", "tokens", "topics", "web",
	}
	if token.IsKeyword(d.Package) || slices.Contains(taken, d.Package) || strings.HasSuffix(name, "_test") {
		return fmt.Errorf("NAME can't be %q: a Go package can't have that name here", name)
	}
	files, err := d.render(d.files)
	if err != nil {
		return err
	}
	wiring, err := os.ReadFile(filepath.Join(root, wiringFile))
	wired := err == nil
	if wired {
		if _, err := exec.LookPath("make"); err != nil {
			return fmt.Errorf("the generated files of this repository need make, and nothing was written: %w", err)
		}
		if wiring, err = d.wire(wiring); err != nil {
			return fmt.Errorf("new handler: %w", err)
		}
	}
	before, err := filesOf(root, wired)
	if err != nil {
		return err
	}
	if err := h.write(target, files); err != nil {
		return err
	}
	if wired {
		err = h.applyWiring(ctx, root, wiring)
	} else {
		err = h.writeMain(root, &d)
	}
	if err == nil {
		return h.sayNext(root, d, wired)
	}
	if undone := errors.Join(before.restore(), os.RemoveAll(target)); undone != nil {
		return errors.Join(err, undone)
	}
	return fmt.Errorf("%w\nAll files are as before", err)
}

// writeMain writes a binary, or notes the one that exists.
func (h *Host) writeMain(root string, d *handler) error {
	folder := filepath.Join(root, "cmd", d.Binary)
	file := filepath.Join(folder, "main.go")
	if text, err := os.ReadFile(file); err == nil {
		d.Main, d.HasLedger = file, bytes.Contains(text, []byte("once.NewPlugin("))
		return nil
	}
	files, err := d.render(d.main)
	if err != nil {
		return err
	}
	return h.write(folder, files)
}

// sayNext says what the author does next.
func (h *Host) sayNext(root string, d handler, wired bool) error {
	if wired {
		_, err := fmt.Fprintf(h.opts.Stdout, `
`+d.wired+` Next:

	go test ./handlers/%[1]s
	go run ./cmd/millrace topology
`, d.Name)
		return err
	}
	if d.Main != "" {
		add, err := d.render([][2]string{{"", d.add}})
		if err != nil {
			return err
		}
		fmt.Fprintf(h.opts.Stdout, "%s", add[0].text)
	}
	replace := ""
	if mod, err := os.ReadFile(filepath.Join(root, "go.mod")); err == nil && !strings.Contains(string(mod), framework) {
		info, _ := debug.ReadBuildInfo()
		replace = replaceLine(sourceFolder(), info)
	}
	_, err := fmt.Fprintf(h.opts.Stdout, `
Next, with Kafka inside the process or with the brokers of a settings file:

%[3]s	go mod tidy
	go test ./handlers/%[2]s
	go run ./cmd/%[1]s topology
	go run ./cmd/%[1]s run --profile embedded

For production, edit cmd/%[1]s/production.yaml:

	go run ./cmd/%[1]s validate --profile production --allow-unset-secrets
`, d.Binary, d.Name, replace)
	return err
}

const framework = "github.com/millrace-io/millrace"

// releaseVersion matches the versions that are no commit between two releases.
var releaseVersion = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// replaceLine returns the command that makes a copy of the framework the source of a new module, in which `go mod tidy`
// would look for a release. It is empty if this binary is of a release, or of a module that was downloaded. source is
// empty in a binary that was compiled with -trimpath, and info may be nil.
func replaceLine(source string, info *debug.BuildInfo) string {
	line := "\tgo mod edit -replace " + framework + "="
	switch {
	case source != "":
		return line + source + "\n"
	case info == nil || info.Main.Path != framework || releaseVersion.MatchString(info.Main.Version):
		return ""
	case info.Main.Version != "" && info.Main.Version != "(devel)" &&
		!slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" }):
		return "" // go install MODULE@COMMIT
	}
	return line + "../millrace  # where your copy of it is\n"
}

// sourceFolder returns the folder of the framework that this binary was compiled in, or "" if that was a
// downloaded module, or the folder is not there.
func sourceFolder() string {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..")
	if !filepath.IsAbs(file) || strings.Contains(root, "@") {
		return ""
	}
	if mod, err := os.ReadFile(filepath.Join(root, "go.mod")); err != nil || modulePath(string(mod)) != framework {
		return ""
	}
	return root
}

// write makes the folder and writes the files into it. After an error it has written none.
func (h *Host) write(folder string, files []sourceFile) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("new handler: %w", err)
	}
	for i, f := range files {
		if err := os.WriteFile(filepath.Join(folder, f.name), f.text, 0o644); err != nil { //nolint:gosec // source code
			for _, written := range files[:i] {
				err = errors.Join(err, os.Remove(filepath.Join(folder, written.name)))
			}
			return fmt.Errorf("new handler: %w", err)
		}
		fmt.Fprintln(h.opts.Stdout, "wrote", filepath.Join(folder, f.name))
	}
	return nil
}

type sourceFile struct {
	name string
	text []byte
}

func (d handler) render(list [][2]string) ([]sourceFile, error) {
	all, err := template.ParseFS(templates, "templates/*.tmpl")
	if err != nil {
		return nil, fmt.Errorf("new handler: %w", err)
	}
	var out []sourceFile
	for _, file := range list {
		var b bytes.Buffer
		name := strings.ReplaceAll(file[0], "PACKAGE", d.Package)
		if err := all.ExecuteTemplate(&b, file[1]+".tmpl", d); err != nil {
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

// findModule returns the root folder and the path of the Go module that dir belongs to.
func findModule(dir string) (root, module string, err error) {
	root, err = filepath.Abs(dir)
	if err != nil {
		return "", "", fmt.Errorf("new handler: %w", err)
	}
	if _, err := os.Stat(root); err != nil {
		return "", "", fmt.Errorf("new handler: --dir: %w", err)
	}
	for {
		text, err := os.ReadFile(filepath.Join(root, "go.mod"))
		if err == nil {
			if module = modulePath(string(text)); module == "" {
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

// modulePath returns the path in the text of a go.mod, or "".
func modulePath(text string) string {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		if words := strings.Fields(line); len(words) == 2 && words[0] == "module" {
			if !strings.ContainsAny(words[1][:1], "\"`") {
				return words[1]
			}
			path, _ := strconv.Unquote(words[1])
			return path
		}
	}
	return ""
}

// wiringFile has the provider sets of the service, in the repository of the framework.
const wiringFile = "wire/sets.go"

type insertion struct {
	at   token.Pos
	text string
}

// wire returns the text of wiringFile with the handler in it: its import, its constructor in the set
// Handlers, and its field in Service.
func (d handler) wire(text []byte) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, wiringFile, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var adds []insertion
	taken := false
	add := func(after token.Pos, text string) { adds = append(adds, insertion{after, text}) }
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			taken = taken || n.Name == d.Package || n.Name == d.Exported()
		case *ast.GenDecl:
			if n.Tok == token.IMPORT {
				add(n.Specs[len(n.Specs)-1].End(), fmt.Sprintf("\n\t%q", d.Import))
			}
			if value, ok := n.Specs[0].(*ast.ValueSpec); ok && value.Names[0].Name == "Handlers" {
				add(value.Values[0].End()-1, ", "+d.Package+".New")
			}
		case *ast.TypeSpec:
			if fields, ok := n.Type.(*ast.StructType); ok && n.Name.Name == "Service" {
				add(fields.Fields.Closing, fmt.Sprintf("\t%s *%s.Plugin\n", d.Exported(), d.Package))
			}
		}
		return true
	})
	if taken {
		return nil, fmt.Errorf("%s has another %s or %s: choose another NAME", wiringFile, d.Package, d.Exported())
	}
	if len(adds) != 3 {
		return nil, errors.New(wiringFile + " needs one import block, the set Handlers, and the struct Service")
	}
	sorted.By(adds, func(a, b insertion) int { return cmp.Compare(b.at, a.at) })
	for _, a := range adds {
		text = slices.Insert(text, fset.Position(a.at).Offset, []byte(a.text)...)
	}
	return format.Source(text)
}

// aliveEvery is the time between two lines about a command that still runs.
const aliveEvery = 10 * time.Second

// runAlive runs cmd and returns what it has written. Meanwhile it says on Err how long that has taken, because
// the first run compiles for a minute or two.
func (h *Host) runAlive(cmd *exec.Cmd, label string, every time.Duration) ([]byte, error) {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	started := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return out.Bytes(), err
		case <-tick.C:
			fmt.Fprintf(h.opts.Stderr, "%s has run for %s; the first run compiles for a minute or two\n", label, time.Since(started).Round(time.Second))
		}
	}
}

// saved are the files that applyWiring changes, as they were before. If only some of them had the new plugin, the
// binary would not compile, or each of its commands would panic.
type saved map[string][]byte

// filesOf returns the files that exist. There are none in another module.
func filesOf(root string, wired bool) (saved, error) {
	files := saved{}
	if !wired {
		return files, nil
	}
	for _, name := range []string{wiringFile, "wire/wire_gen.go", "configs/millrace.schema.json", "docs/settings.md", "docs/metrics.md"} {
		file := filepath.Join(root, name)
		text, err := os.ReadFile(file)
		if err == nil {
			files[file] = text
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("new handler: %w", err)
		}
	}
	return files, nil
}

func (s saved) restore() (err error) {
	for file, text := range s {
		err = errors.Join(err, os.WriteFile(file, text, 0o644)) //nolint:gosec // source code
	}
	return err
}

// applyWiring writes wiringFile and generates the files that follow from it.
func (h *Host) applyWiring(ctx context.Context, root string, text []byte) error {
	if err := os.WriteFile(filepath.Join(root, wiringFile), text, 0o644); err != nil { //nolint:gosec // source code
		return fmt.Errorf("new handler: %w", err)
	}
	fmt.Fprintf(h.opts.Stdout, "changed %s\n", wiringFile)
	for _, target := range []string{"wire", "schema", "reference"} {
		fmt.Fprintln(h.opts.Stdout, "running make", target)
		out, err := h.runAlive(exec.CommandContext(ctx, "make", "-C", root, target), "make "+target, aliveEvery)
		if err != nil {
			return fmt.Errorf("make %s: %w\n%s", target, err, bytes.TrimSpace(out))
		}
	}
	return nil
}
