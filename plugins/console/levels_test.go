package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// An operator changes the log level with the form of the page Instances, and a program takes it back. A viewer may
// do neither, and a console that only reads has no such form.
func TestTheLogLevelIsChangedInTheConsole(t *testing.T) {
	t.Parallel()
	hash, err := bcrypt.GenerateFromPassword([]byte("open"), bcrypt.MinCost)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "ann:%[1]s\nbob:%[1]s\n", hash), 0o600))
	address := redistest.Mini(t).Addr
	with := func(change func(*console.Config)) *rig {
		server := redis.New()
		server.Settings().(*redis.Config).Addrs = []string{address}
		return start(t, change, server)
	}
	r := with(func(c *console.Config) { c.UsersFile, c.Roles = file, map[string]operate.Role{"bob": operate.Operator} })
	const path = "/actions/instances/log-level"
	_, page := r.do(http.MethodGet, "/instances", "", signed("bob"))
	require.Contains(t, page, `<a href="`+path+`">instances log-level</a>`)
	_, page = r.do(http.MethodGet, "/instances", "", signed("ann"))
	require.Contains(t, page, "(not allowed: needs the role operator)")

	input := url.Values{"in.level": {"debug"}, "in.for": {"2m"}}
	answer, _ := r.post(path, url.Values{"step": {"preview"}, "in.level": {"debug"}, "in.for": {"2m"}}, signed("ann"))
	require.Equal(t, http.StatusForbidden, answer.StatusCode)
	status, _ := r.send("instances/log-level", `{"input":{"level":"debug"},"why":"x"}`, signed("ann"))
	require.Equal(t, http.StatusForbidden, status)
	status, said := r.send("instances/log-level", `{"input":{"level":"loud"},"why":"x"}`, signed("bob"))
	require.Equal(t, http.StatusBadRequest, status)
	require.Contains(t, said["error"], "the level must be debug, info, warn, error or settings")

	confirm, text := r.previewed(path, input, signed("bob"))
	require.Contains(t, text, "Would set the log level of all instances to debug for 2m0s, within 5s on every instance that runs.")
	confirm.Set("why", "ticket 7")
	answer, text = r.post(path, confirm, signed("bob"))
	require.Equal(t, http.StatusSeeOther, answer.StatusCode, text)
	_, text = r.do(http.MethodGet, answer.Header.Get("Location"), "", signed("bob"))
	require.Contains(t, text, "Set the log level of all instances to debug until 20")
	status, said = r.send("instances/log-level", `{"input":{"level":"settings"},"why":"it was found"}`, signed("bob"))
	require.Equal(t, http.StatusOK, status, said)
	require.Equal(t, true, said["outcome"].(map[string]any)["changed"])
	_, audit := r.do(http.MethodGet, "/audit", "", signed("ann"))
	for _, part := range []string{"Log levels", "log level debug for 2m0s", "log level settings", "ticket 7", "it was found", "<td>bob</td><td>console</td><td>operator</td>", "<td>bob</td><td>API</td><td>operator</td>"} {
		require.Contains(t, audit, part)
	}

	require.NoError(t, r.stop()) // it has the name of the next one
	reader := with(func(c *console.Config) { c.ReadOnly = true })
	require.NotContains(t, reader.get("/instances"), "log-level")
	status, _ = reader.send("instances/log-level", `{"input":{"level":"debug"},"why":"x"}`)
	require.Equal(t, http.StatusNotFound, status)
}
