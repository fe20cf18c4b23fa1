// Scope says what a change needs checked beyond what is always checked. The change is what was
// committed since the last submitted one, and `.ci/round` names that:
//
//	go run ./e2e/scope round [COMMIT]   raise the counter, and commit that
//	go run ./e2e/scope env              print the variables for the tests of this change
//
// The counter is the number of the round. Each round also has a quarter of what its change does not
// touch, so that four rounds in a row have run everything. A change that touches more than four areas
// has two quarters of everything instead, and the next round the other two, because all of it would
// take an hour. What is committed after the counter was raised belongs to the same change. A change that
// never raised it is checked together with the one before, from the same base: too much then, and never
// too little, but its quarter is an old one.
//
// Exit codes: 0 done, 1 the counter is wrong or git fails, 2 usage.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

const (
	counter = ".ci/round"
	// everything stands for all areas.
	everything = "everything"
	// mostAreas is how many areas a check has as a whole.
	mostAreas = 4

	module    = "github.com/millrace-io/millrace"
	packaging = module + "/packaging"
)

func main() {
	os.Exit(run(context.Background(), ".", os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, top string, args []string, out, errOut io.Writer) int {
	r := repository{ctx: ctx, top: top}
	var err error
	switch {
	case len(args) == 1 && args[0] == "env":
		err = r.env(out, errOut)
	case len(args) == 1 && args[0] == "round":
		err = r.raise("", out)
	case len(args) == 2 && args[0] == "round":
		err = r.raise(args[1], out)
	default:
		fmt.Fprintln(errOut, "usage: scope round [COMMIT] | scope env")
		return 2
	}
	if err != nil {
		fmt.Fprintf(errOut, "scope: %v\n", err)
		return 1
	}
	return 0
}

// repository is a checkout.
type repository struct {
	ctx context.Context
	top string
}

func (r repository) command(name string, args ...string) (string, error) {
	cmd := exec.CommandContext(r.ctx, name, args...)
	cmd.Dir = r.top
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(out)), err
}

func (r repository) git(args ...string) (string, error) { return r.command("git", args...) }

// round is the content of the counter: its number, and the commit that was submitted before.
type round struct {
	number int
	base   string
}

// at reads the counter of a commit. Without the file it is 0.
func (r repository) at(commit string) (round, error) {
	listed, err := r.git("ls-tree", commit, "--", counter)
	if err != nil || listed == "" {
		return round{}, err
	}
	text, err := r.git("show", commit+":"+counter)
	if err != nil {
		return round{}, err
	}
	var is round
	if _, err := fmt.Sscan(text, &is.number, &is.base); err != nil {
		return round{}, fmt.Errorf("%s: %q: want a number and a commit: %w", counter, text, err)
	}
	return is, nil
}

// raise commits the next number. Without a base it is the last commit that raised the counter.
func (r repository) raise(base string, out io.Writer) error {
	dirty, err := r.git("status", "--porcelain")
	if err != nil {
		return err
	}
	if dirty != "" {
		return fmt.Errorf("commit or remove this first, because the raised counter is a commit by itself:\n%s", dirty)
	}
	if base == "" {
		if base, err = r.git("log", "-1", "--format=%H", "--", counter); err != nil {
			return err
		}
		if base == "" {
			return errors.New("the counter was never raised: name the commit that was submitted last: scope round COMMIT")
		}
	}
	if base, err = r.git("rev-parse", "--verify", base+"^{commit}"); err != nil {
		return err
	}
	head, err := r.git("rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if head == base {
		return fmt.Errorf("nothing was committed since %.12s, which raised the counter", base)
	}
	before, err := r.at(base)
	if err != nil {
		return err
	}
	next := round{before.number + 1, base}
	if is, err := r.at("HEAD"); err == nil && is == next {
		fmt.Fprintf(out, "round %d was raised already: it checks what changed since %.12s\n", next.number, next.base)
		return nil
	}
	if err := os.WriteFile(filepath.Join(r.top, counter), fmt.Appendf(nil, "%d %s\n", next.number, next.base), 0o644); err != nil {
		return err
	}
	if _, err := r.git("add", counter); err != nil {
		return err
	}
	if _, err := r.git("commit", "-q", "-m", fmt.Sprintf("ci: round %d", next.number)); err != nil {
		return err
	}
	fmt.Fprintf(out, "round %d: it checks what changed since %.12s. If that one was never submitted, name the last commit that was: scope round COMMIT\n", next.number, base)
	return nil
}

// change returns the round of HEAD and the files that changed in it. A shallow clone does not know
// them, so all files have changed in it.
func (r repository) change() (round, []string, error) {
	is, err := r.at("HEAD")
	if err != nil {
		return is, nil, err
	}
	shallow, err := r.git("rev-parse", "--is-shallow-repository")
	if err != nil {
		return is, nil, err
	}
	if shallow == "true" {
		all, err := r.git("ls-files", "-z")
		return is, lines(all), err
	}
	if is.number == 0 {
		return is, nil, fmt.Errorf("%s was never raised, so nobody knows which change is checked: run `make round BASE=COMMIT` with the commit that was submitted last", counter)
	}
	before, err := r.at(is.base)
	if err != nil {
		return is, nil, err
	}
	if is.number != before.number+1 {
		return is, nil, fmt.Errorf("%s is %d, but %d at %.12s, which it names as the change before: want %d", counter, is.number, before.number, is.base, before.number+1)
	}
	if _, err := r.git("merge-base", "--is-ancestor", is.base, "HEAD"); err != nil {
		return is, nil, fmt.Errorf("%s names %.12s, which is not in the history of HEAD: %w", counter, is.base, err)
	}
	files, err := r.git("diff", "--no-renames", "--name-only", "-z", is.base, "HEAD")
	return is, lines(files), err
}

// lines returns the names of a list of git -z.
func lines(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == 0 })
}

// env prints the variables for the tests of the change, and for a reader what they mean.
func (r repository) env(out, errOut io.Writer) error {
	is, files, err := r.change()
	if err != nil {
		return err
	}
	list, err := r.packages()
	if err != nil {
		return err
	}
	areas, err := r.areas(files)
	if err != nil {
		return err
	}
	touched, quarters := touch(files, list), []int{is.number % 4}
	everywhere := slices.Contains(areas, everything)
	var builds string
	if everywhere || slices.Contains(touched, packaging) || slices.Contains(quarters, tier.Quarter(packaging)) {
		builds = "./..."
	}
	what := strings.Join(areas, " ")
	if everywhere || len(areas) > mostAreas {
		areas, touched, quarters = nil, nil, append(quarters, (is.number+2)%4)
		what += ", which is too much for one check"
	}
	var folders, race []string
	for _, p := range list {
		isTouched := slices.Contains(touched, p.ImportPath)
		if isTouched && p.folder() != "e2e" { // its scenarios go by areas
			folders = append(folders, p.folder())
		}
		if p.concurrent() && (isTouched || slices.Contains(quarters, tier.Quarter(p.ImportPath))) {
			race = append(race, p.ImportPath)
		}
	}
	slices.Reverse(race) // the plugins first: theirs take longest, and nothing should wait for one of them at the end
	numbers := strings.ReplaceAll(strings.Trim(fmt.Sprint(quarters), "[]"), " ", ",")
	fmt.Fprintf(errOut, "round %d, since %.12s: %d files; areas: %s; packages: %s; and of the rest quarter %s\n",
		is.number, is.base, len(files), what, strings.Join(folders, " "), numbers)
	fmt.Fprintf(out, "export MILLRACE_AREAS='%s'\nexport MILLRACE_PACKAGES='%s'\nexport MILLRACE_QUARTERS=%s\nexport RACE_PKGS='%s'\nexport PACKAGING_PKGS='%s'\n",
		strings.Join(areas, ","), strings.Join(folders, ","), numbers, strings.Join(race, " "), builds)
	return nil
}

// folderAreas are the folders of each area. The longest folder that a file is in decides.
func folderAreas() map[string]string {
	return map[string]string{
		"handlers/promotion": string(tier.Promotion), "plugins/once": string(tier.Promotion), "e2e/faults": string(tier.Promotion),
		"handlers/eventrouter": string(tier.Router), "handlers/waitingroom": string(tier.Room),
		"plugins/kafka": string(tier.Kafka),
		"plugins/redis": string(tier.Redis), "plugins/redisstream": string(tier.Redis), "plugins/streams": string(tier.Redis), "plugins/reclaim": string(tier.Redis),
		"plugins/deadletter": string(tier.DeadLetter),
		"internal/redis":     string(tier.Redis), "internal/deadletter": string(tier.DeadLetter), "internal": string(tier.Pipeline),
		"plugins/web": string(tier.Web), "plugins/sse": string(tier.Web), "plugins/token": string(tier.Web),
		"pipeline/app": string(tier.CLI), "cmd": string(tier.CLI), "configs": string(tier.CLI),
		"pipeline": string(tier.Pipeline), "wire": string(tier.Pipeline), "plugins": string(tier.Pipeline), "handlers": string(tier.Pipeline),
		"go.mod": everything, "go.sum": everything, "go.work": everything, "e2e/go.mod": everything,
		"pipeline/pipelinetest/tier": everything, "e2e/services": everything, "e2e/go.sum": everything,
		"Makefile": everything, ".ci/run": everything,
	}
}

// areaOf returns the area of a file, or "" for one that no scenario follows.
func areaOf(file string) string {
	if strings.HasSuffix(file, ".md") {
		return ""
	}
	folders := folderAreas()
	for at := file; at != "."; at = path.Dir(at) {
		if area, found := folders[at]; found {
			return area
		}
	}
	return ""
}

var named = regexp.MustCompile(`\btier\.(?:Rest|Selected)\(.*`)

// areas returns the areas of the files, sorted. A scenario's own file touches the areas that it
// names.
func (r repository) areas(files []string) ([]string, error) {
	found := map[string]bool{}
	for _, file := range files {
		if area := areaOf(file); area != "" {
			found[area] = true
		}
		if path.Dir(file) != "e2e" || !strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(r.top, file))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted
		}
		if err != nil {
			return nil, err
		}
		calls := named.FindAllString(string(text), -1)
		if len(calls) == 0 {
			found[everything] = true // what scenarios share, or cases that another file selects
		}
		for _, call := range calls {
			for _, area := range []tier.Area{tier.Promotion, tier.Router, tier.Room, tier.Kafka, tier.Redis, tier.DeadLetter, tier.Web, tier.CLI, tier.Pipeline} {
				if regexp.MustCompile(`(?i)\btier\.` + string(area) + `\b`).MatchString(call) {
					found[string(area)] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// pkg is a package of the repository, as `go list -json` describes it.
type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func (p pkg) folder() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// concurrent reports whether the race detector runs the package's tests.
func (p pkg) concurrent() bool {
	for _, folder := range []string{"internal", "pipeline", "plugins", "handlers", "e2e/services", "e2e/testsummary"} {
		if p.folder() == folder || strings.HasPrefix(p.folder(), folder+"/") {
			return true
		}
	}
	return false
}

// packages lists the packages of the workspace. The module of the packaging is outside of it, and counts
// as one package that imports what it builds: the binary, its list of plugins, its exit codes, its settings,
// alerts and dashboard, and the servers that a build tag leaves out.
func (r repository) packages() ([]pkg, error) {
	text, err := r.command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "./...", "./e2e/...")
	if err != nil {
		return nil, err
	}
	list := []pkg{{ImportPath: packaging, Imports: []string{module + "/configs", module + "/configs/profiles", module + "/cmd/millrace", module + "/wire", module + "/pipeline/app", module + "/plugins/embedded"}}}
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		list = append(list, p)
	}
}

// touch returns the import paths of the packages that the files belong to, and of those that import
// one of them directly.
func touch(files []string, list []pkg) []string {
	known, changed, touched := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range list {
		known[p.ImportPath] = true
	}
	for _, file := range files {
		switch file {
		case "compose.yaml", "Dockerfile", ".dockerignore", ".goreleaser.yaml": // at the top for those who look there
			changed[packaging] = true
		}
		// A script or a test's data belongs to the nearest package above it.
		for at := path.Dir(file); at != "."; at = path.Dir(at) {
			if known[path.Join(module, at)] {
				changed[path.Join(module, at)] = true
				break
			}
		}
	}
	for _, p := range list {
		imports := slices.Concat(p.Imports, p.TestImports, p.XTestImports)
		if changed[p.ImportPath] || slices.ContainsFunc(imports, func(i string) bool { return changed[i] }) {
			touched[p.ImportPath] = true
		}
	}
	return slices.Sorted(maps.Keys(touched))
}
