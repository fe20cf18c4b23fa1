package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// blocks returns the code blocks of a section of a page, in a language.
func blocks(t *testing.T, page, section, language string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", page))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
	require.True(t, found, section)
	rest, _, _ = strings.Cut(rest, "\n## ")
	for i, part := range strings.Split(rest, "```") {
		if name, code, _ := strings.Cut(part, "\n"); i%2 == 1 && name == language {
			list = append(list, code)
		}
	}
	require.NotEmpty(t, list, "%s in %s", language, section)
	return list
}

const (
	routerPage = "handlers/eventrouter/README.md"

	// withPage is a page of another origin: the token, and the code of the README.
	withPage = `<!doctype html><progress max="100"></progress><script type="module">
async function newToken() { return %q; }
%s
globalThis.seen = () => ({
  percent: document.querySelector("progress").value, numbers: [...received.keys()].join(), ended: stream.readyState === EventSource.CLOSED,
});
</script>`

	// pythonRedis is the module redis of the example, on top of redis-cli.
	pythonRedis = `
import os, subprocess
class Redis:
    def __init__(self, decode_responses):
        pass
    def xadd(self, stream, fields):
        flat = [str(x) for pair in fields.items() for x in pair]
        subprocess.run(["redis-cli", "-e", "-p", os.environ["REDIS_PORT"], "XADD", stream, "*", *flat], check=True)
`
)

// The lines of the README for a shell, for Python and for a page are run as they are.
func TestTheProducersAndThePageOfTheRoutersReadme(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	tier.Rest(t, tier.Router, tier.Web)
	for _, program := range []string{"redis-cli", "python3"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	node := startNode(t, "redis-server")
	code := ""
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, code) // the browser reads it
	}))
	t.Cleanup(page.Close)
	s := startJobs(t, node.addr, "readme", "MILLRACE__PLUGINS__WEB__ALLOWED_ORIGINS="+page.URL)
	jobs := func(args ...string) string {
		out, exit := s.command("", append([]string{"jobs"}, args...)...)
		require.Zero(t, exit, out)
		return strings.TrimSpace(out)
	}
	run := func(env string, name string, args ...string) {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "REDIS_PORT="+node.port(), env)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}

	shell := blocks(t, routerPage, "Producers in other languages", "sh")
	require.Len(t, shell, 1)
	run("", "sh", "-c", strings.Replace(shell[0], "redis-cli ", "redis-cli -e -p "+node.port()+" ", 1))
	script := blocks(t, routerPage, "A page of your own", "js")
	require.Len(t, script, 1)
	require.Contains(t, script[0], "https://jobs.example")
	code = fmt.Sprintf(withPage, jobs("token", "scan/report-7"), strings.ReplaceAll(script[0], "https://jobs.example", s.url))
	tab := b.open(t, page.URL, 1000)
	type state struct {
		Percent int    `json:"percent"`
		Numbers string `json:"numbers"`
		Ended   bool   `json:"ended"`
	}
	shows := func(want state) {
		t.Helper()
		var got state
		require.Eventually(t, func() bool {
			got = value[state](tab, "seen()")
			return got == want
		}, 2*time.Minute, glance, "the page shows another state than %+v\n%s", want, s.log)
	}
	shows(state{20, "1", false})

	// A run that was reset is taken back.
	jobs("publish", "scan/report-7", "scan", "--seq", "2", "--data", `{"percent":40}`)
	shows(state{40, "1,2", false})
	jobs("reset", "scan/report-7", "--why", "test")
	require.NoError(t, node.XAdd(t.Context(), &goredis.XAddArgs{
		Stream: "scan:events:4", Values: []any{"job_id", "report-7", "stage", "again", "seq", 1, "data", `{"percent":10}`},
	}).Err())
	shows(state{10, "1", false})

	python := blocks(t, routerPage, "Producers in other languages", "python")
	require.Len(t, python, 1)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "redis.py"), []byte(pythonRedis), 0o600))
	file := filepath.Join(dir, "publish.py")
	require.NoError(t, os.WriteFile(file, []byte(python[0]), 0o600))
	run("PYTHONPATH="+dir, "python3", file)
	shows(state{100, "1,2,3", true})

	// A page that comes later receives the state before the history, and its bar does not run back.
	tab = b.open(t, page.URL, 1000)
	shows(state{100, "1,2,3", true})
}
