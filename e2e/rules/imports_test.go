package rules_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/millrace-io/millrace"

// room is a folder of the project and what the packages in it may import. The first room that a
// package lies in is its own.
type room struct {
	folder string
	// ours are the folders of the project that it may import; a trailing slash means everything in
	// it. The room itself is always allowed.
	ours []string
	// testsToo are allowed in its tests, in addition to ours.
	testsToo []string
	// others, when not nil, are all that it may import of other modules, by prefix, outside its
	// tests.
	others []string
}

// rooms is the table of the README, in the order of looking up.
func rooms() []room {
	contract := []string{"github.com/ThreeDotsLabs/watermill", "go.opentelemetry.io/otel", "github.com/prometheus/client_golang/prometheus"}
	list := []room{
		{folder: "pipeline/app", ours: []string{"pipeline/", "configs"}, testsToo: []string{"plugins/", "internal/terminaltest"}},
		{folder: "pipeline/middleware", ours: []string{"pipeline", "pipeline/logs", "pipeline/loop", "pipeline/setting"}, testsToo: []string{"pipeline/"}, others: append([]string{"github.com/prometheus/client_model/go"}, contract...)},
		{folder: "pipeline/httpclient", ours: []string{"pipeline/logs", "pipeline/setting"}, testsToo: []string{"pipeline/"}, others: append([]string{"golang.org/x/oauth2"}, contract...)},
		{folder: "pipeline/pipelinetest", ours: []string{"pipeline/"}, testsToo: []string{"plugins/"}, others: append([]string{"github.com/stretchr/testify"}, contract...)},
		{folder: "pipeline", testsToo: []string{"pipeline/"}, others: contract},
		{folder: "configs", testsToo: []string{"wire", "pipeline/", "plugins/", "handlers/"}},
		{folder: "wire", ours: []string{"configs/", "pipeline/", "plugins/", "handlers/"}},
		{folder: "cmd/millrace", ours: []string{"pipeline/app", "wire"}, others: []string{}},
		{folder: "e2e", ours: []string{"configs/", "pipeline/", "plugins/", "handlers/", "wire"}},
	}
	// Plugins stand on those below them, in this order.
	var below []string
	for _, plugin := range []string{"sqldb", "deadletter", "kafka", "redis", "redisstream", "reclaim", "streams", "once", "token", "sse", "web", "embedded", "telemetry", "console"} {
		list = append(list, room{
			folder: "plugins/" + plugin, ours: append([]string{"pipeline/"}, below...), testsToo: []string{"plugins/"},
		})
		if plugin == "once" { // its tables are not optional
			list[len(list)-1].ours = append(list[len(list)-1].ours, "plugins/sqldb")
		}
		if plugin == "sqldb" { // a binary without tables requires no driver
			below = append(below, "plugins/sqldb/portable")
			continue
		}
		below = append(below, "plugins/"+plugin+"/")
	}
	// What no author of a plugin needs. The contract takes no driver from there.
	for i := range list {
		if within(list[i].folder, "pipeline/") {
			list[i].ours = append(list[i].ours, "internal/envelope", "internal/failpoint", "internal/sorted")
			continue
		}
		list[i].ours = append(list[i].ours, "internal/")
	}
	return append(list, room{folder: "internal", ours: []string{"pipeline/", "plugins/sqldb/portable", "plugins/redis/entry"}, testsToo: []string{"plugins/"}})
}

// only says where a module may be imported, outside of tests. e2e is the proof, and may import all
// of them.
type only struct {
	modules []string
	in      []string
}

func onlys() []only {
	return []only{
		{modules: []string{"github.com/google/wire"}, in: []string{"wire/"}},
		{modules: []string{"github.com/jackc/pgx", "modernc.org/sqlite", "github.com/pressly/goose"}, in: []string{"plugins/sqldb/", "plugins/once/", "handlers/", "internal/sqldbtest"}},
		{modules: []string{"github.com/spf13/cobra"}, in: []string{"pipeline/app/", "plugins/console/", "plugins/deadletter/", "plugins/once/", "handlers/", "internal/"}},
		{
			modules: []string{
				"github.com/IBM/sarama", "github.com/ThreeDotsLabs/watermill-kafka", "github.com/ThreeDotsLabs/watermill-redisstream",
				"github.com/redis/go-redis", "github.com/twmb/franz-go", "github.com/alicebob/miniredis",
			},
			in: []string{"plugins/", "internal/"},
		},
	}
}

// pack is what `go list -json` says of a package.
type pack struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func (p pack) folder() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// violations returns what is wrong with the imports of p.
func violations(p pack) []string {
	var wrong []string
	own, found := lookUp(p.folder())
	if !found {
		return []string{fmt.Sprintf("%s lies in no room: add it to the table here and in the README", p.folder())}
	}
	for _, imported := range p.Imports {
		if reason := own.refusal(imported, false); reason != "" {
			wrong = append(wrong, fmt.Sprintf("%s imports %s: %s", p.folder(), imported, reason))
		}
		for _, o := range onlys() {
			if o.forbids(p.folder(), imported) {
				wrong = append(wrong, fmt.Sprintf("%s imports %s: only for %s", p.folder(), imported, strings.Join(o.in, ", ")))
			}
		}
	}
	for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
		if reason := own.refusal(imported, true); reason != "" {
			wrong = append(wrong, fmt.Sprintf("a test of %s imports %s: %s", p.folder(), imported, reason))
		}
	}
	return wrong
}

func lookUp(folder string) (room, bool) {
	for _, r := range rooms() {
		if within(folder, r.folder+"/") {
			return r, true
		}
	}
	// Each handler has a room, known or not. It never imports another: its own folder is all that
	// it may import of handlers/.
	if rest, ok := strings.CutPrefix(folder, "handlers/"); ok {
		name, _, _ := strings.Cut(rest, "/")
		return room{folder: "handlers/" + name, ours: []string{"pipeline/", "plugins/", "internal/"}, testsToo: []string{"e2e/services/servers"}}, true
	}
	return room{}, false
}

// within reports whether folder is allowed by what: exactly, or below it when it ends in a slash.
func within(folder, what string) bool {
	return folder == strings.TrimSuffix(what, "/") || strings.HasSuffix(what, "/") && strings.HasPrefix(folder, what)
}

// refusal returns why the room may not import, or "".
func (r room) refusal(imported string, test bool) string {
	folder, isOurs := strings.CutPrefix(imported, module+"/")
	if !isOurs {
		standard := !strings.Contains(strings.Split(imported, "/")[0], ".")
		if standard || test || r.others == nil || slices.ContainsFunc(r.others, func(o string) bool { return within(imported, o+"/") }) {
			return ""
		}
		return r.folder + " keeps to the standard library and " + strings.Join(r.others, ", ")
	}
	allowed := append([]string{r.folder + "/"}, r.ours...)
	if test {
		allowed = append(allowed, r.testsToo...)
	}
	if slices.ContainsFunc(allowed, func(a string) bool { return within(folder, a) }) {
		return ""
	}
	return r.folder + " may import of ours only " + strings.Join(allowed, ", ")
}

func (o only) forbids(folder, imported string) bool {
	concerns := slices.ContainsFunc(o.modules, func(m string) bool { return within(imported, m+"/") })
	allowed := within(folder, "e2e/") || slices.ContainsFunc(o.in, func(in string) bool { return within(folder, in) })
	return concerns && !allowed
}

func TestImports(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"/...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	require.NoError(t, err)
	seen := 0
	for dec := json.NewDecoder(bytes.NewReader(out)); ; seen++ {
		var p pack
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if strings.HasPrefix(p.folder(), "zz_") {
			continue // a throw-away folder, never committed
		}
		for _, wrong := range violations(p) {
			t.Error(wrong)
		}
	}
	require.Greater(t, seen, 10, "packages were looked at")
}

func TestImportRulesBite(t *testing.T) {
	t.Parallel()
	ours := func(folder string) string { return module + "/" + folder }
	for name, c := range map[string]struct {
		bad  pack
		want string // empty: it is fine
	}{
		"the contract imports a plugin":         {pack{ImportPath: ours("pipeline"), Imports: []string{ours("plugins/kafka")}}, "pipeline may import of ours only pipeline/"},
		"the contract imports settings":         {pack{ImportPath: ours("pipeline"), Imports: []string{ours("configs")}}, "pipeline may import of ours only"},
		"the contract imports a driver":         {pack{ImportPath: ours("pipeline"), Imports: []string{"github.com/IBM/sarama"}}, "only for plugins/"},
		"the contract imports another module":   {pack{ImportPath: ours("pipeline/middleware"), Imports: []string{"golang.org/x/sync/errgroup"}}, "keeps to the standard library"},
		"a plugin imports one above it":         {pack{ImportPath: ours("plugins/deadletter"), Imports: []string{ours("plugins/kafka")}}, "plugins/deadletter may import of ours only"},
		"the store imports the drivers":         {pack{ImportPath: ours("internal/deadletter/store"), Imports: []string{ours("plugins/sqldb")}}, "internal may import of ours only"},
		"the store imports no driver of tables": {pack{ImportPath: ours("internal/deadletter/store"), Imports: []string{ours("plugins/sqldb/portable")}}, ""},
		"a plugin imports one below it":         {pack{ImportPath: ours("plugins/kafka"), Imports: []string{ours("plugins/deadletter")}}, ""},
		"a plugin's test imports one above it":  {pack{ImportPath: ours("plugins/kafka"), XTestImports: []string{ours("plugins/embedded")}}, ""},
		"a plugin imports a handler":            {pack{ImportPath: ours("plugins/streams"), Imports: []string{ours("handlers/promotion")}}, "plugins/streams may import of ours only"},
		"the rules of effects know no handler":  {pack{ImportPath: ours("plugins/once/ledger/rules"), Imports: []string{ours("handlers/promotion/ledger/payouts")}}, "plugins/once may import of ours only"},
		"a plugin imports settings":             {pack{ImportPath: ours("plugins/streams"), Imports: []string{ours("configs")}}, "plugins/streams may import of ours only"},
		"a handler imports another":             {pack{ImportPath: ours("handlers/eventrouter"), Imports: []string{ours("handlers/promotion")}}, "handlers/eventrouter may import of ours only"},
		"a handler that no table names":         {pack{ImportPath: ours("handlers/greetings"), Imports: []string{ours("plugins/kafka")}}, ""},
		"a handler imports its own folder":      {pack{ImportPath: ours("handlers/promotion/money"), Imports: []string{ours("handlers/promotion/ledger")}}, ""},
		"a handler imports a driver":            {pack{ImportPath: ours("handlers/eventrouter"), Imports: []string{"github.com/redis/go-redis/v9"}}, "only for plugins/"},
		"a handler imports wire":                {pack{ImportPath: ours("handlers/promotion"), Imports: []string{"github.com/google/wire"}}, "only for wire/"},
		"settings import a plugin":              {pack{ImportPath: ours("configs"), Imports: []string{ours("plugins/kafka")}}, "configs may import of ours only configs/"},
		"the middleware imports cobra":          {pack{ImportPath: ours("pipeline/middleware"), Imports: []string{"github.com/spf13/cobra"}}, "only for pipeline/app/"},
		"the contract imports a driver of ours": {pack{ImportPath: ours("pipeline"), Imports: []string{ours("internal/redis/poll")}}, "pipeline may import of ours only"},
		"the binary imports a plugin":           {pack{ImportPath: ours("cmd/millrace"), Imports: []string{ours("plugins/kafka")}}, "cmd/millrace may import of ours only"},
		"the proof imports the binary":          {pack{ImportPath: ours("e2e"), XTestImports: []string{ours("cmd/millrace")}}, "e2e may import of ours only"},
		"the proof imports drivers":             {pack{ImportPath: ours("e2e"), Imports: []string{"github.com/IBM/sarama"}}, ""},
		"a folder without a room":               {pack{ImportPath: ours("util")}, "lies in no room"},
		"a name that begins like a room's name": {pack{ImportPath: ours("pipelines")}, "lies in no room"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wrong := violations(c.bad)
			if c.want == "" {
				require.Empty(t, wrong)
				return
			}
			require.Contains(t, strings.Join(wrong, "\n"), c.want)
		})
	}
}
