package console_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/console"
)

// club is a plugin with which instances know each other: by name, the process that has it.
type club struct {
	self    string
	members map[string]string
}

func (club) Name() string                          { return "club" }
func (c club) Register(r *pipeline.Registry) error { r.Offer(c); return nil }
func (c club) Process() string                     { return c.self }

func (c club) IsMember(_ context.Context, instance, process string) (bool, error) {
	return c.members[instance] == process, nil
}

// The console of another deployment, which has taken the address on this machine, is not that of the settings.
func TestCommandsUseTheConsoleOfTheirDeployment(t *testing.T) {
	t.Parallel()
	r := start(t, nil, club{self: "p1"}, page(loading("a", pages.Text("inside"), nil)))
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	for name, c := range map[string]struct {
		base    string
		members map[string]string
		code    int
		text    string
	}{
		"its own":       {r.base, map[string]string{"rig": "p1"}, app.ExitOK, ""},
		"of another":    {r.base, map[string]string{"rig": "p2"}, app.ExitUnavailable, "but that of the instance rig of another one: it is not among the running instances that the club of these settings knows"},
		"another thing": {other.URL, nil, app.ExitUnavailable, "what answers at " + other.URL + "/ is no console"},
	} {
		for _, args := range [][]string{{"open"}, {"top", "tried"}} {
			var out, log pipelinetest.Buffer
			code := app.Main(t.Context(), app.Options{
				Name: "mine", Plugins: []pipeline.Plugin{club{members: c.members}, console.New()}, Args: args, Stdout: &out, Stderr: &log,
				Environ: []string{"MINE__PLUGINS__CONSOLE__ENABLED=true", "MINE__DATA_DIR=/nonexistent", "MINE__PLUGINS__CONSOLE__LISTEN=" + strings.TrimPrefix(c.base, "http://")},
			})
			require.Equal(t, c.code, code, "%s: %s: %s", name, args, log.String())
			require.Contains(t, log.String(), c.text, name)
			require.Equal(t, code == app.ExitOK, strings.Contains(out.String(), r.base) || strings.Contains(out.String(), "inside"), name)
		}
	}
}

// Who answers is told to this machine only, and not through a proxy on it.
func TestTheIdentityIsForThisMachine(t *testing.T) {
	t.Parallel()
	told := func(configure func(*console.Config)) string {
		answer, _ := start(t, configure, club{self: "p1"}).do(http.MethodGet, "/", "")
		return answer.Header.Get("Millrace-Identity")
	}
	require.Equal(t, "environment=&instance=rig&process=p1", told(nil))
	require.Equal(t, "environment=&instance=rig&process=p1", told(func(c *console.Config) { c.UsersFile = usersFile(t) }), "before a login")
	require.Empty(t, told(func(c *console.Config) {
		c.Auth.Header, c.TrustedProxies, c.Roles = "X-User", []string{"127.0.0.0/8"}, map[string]operate.Role{"ann": operate.Viewer}
	}))
}
