package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// club is a plugin with which instances know each other: by name, the process that has it.
type club struct {
	self    string
	members map[string]string
	err     error
}

func (club) Name() string                          { return "club" }
func (c club) Register(r *pipeline.Registry) error { r.Offer(c); return nil }
func (c club) Process() string                     { return c.self }

func (c club) IsMember(_ context.Context, instance, process string) (bool, error) {
	return c.members[instance] == process, c.err
}

// What answers at the address of the settings is believed only if it is an instance of these settings.
func TestAnInstanceOfAnotherDeployment(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer  string // besides the name mill-1 and the phase running
		env     pipeline.Env
		members *club
		because string // empty: it is ours, as far as that is known
	}{
		"its environment is another one": {
			answer: `"environment": "embedded"`, env: pipeline.Env{Environment: "external"},
			because: `its environment is "embedded", and that of these settings "external"`,
		},
		"it is a member":             {answer: `"process": "p1"`, members: &club{members: map[string]string{"mill-1": "p1"}}},
		"another has its name":       {answer: `"process": "p1"`, members: &club{members: map[string]string{"mill-1": "p2"}}, because: "it is not among the running instances that the club of these settings knows"},
		"nobody has its name":        {answer: `"process": "p1"`, members: &club{}, because: "it is not among the running instances that the club of these settings knows"},
		"it has lost the club":       {answer: `"process": "p1", "checks": {"club": {"ok": false, "error": "no answer"}}`, members: &club{}},
		"the club gives no answer":   {answer: `"process": "p1"`, members: &club{err: errors.New("no answer")}},
		"it has no club":             {answer: `"process": ""`, members: &club{}, because: "it runs without the plugin club, which these settings have"},
		"these settings have none":   {answer: `"process": "p1"`, because: "it shares a server with other instances that these settings do not have"},
		"another name is configured": {env: pipeline.Env{Instance: "mill-2", InstanceConfigured: true}, answer: `"checks": {}`, because: "the instance_id of these settings is mill-2"},
		"no name is configured":      {env: pipeline.Env{Instance: "here-7"}, answer: `"checks": {}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprintf(w, `{"phase": "running", "instance": "mill-1", "conditions": [{"name": "API", "level": "fail", "text": "it is away", "remedy": "ask"}], %s}`, tc.answer)
			}))
			t.Cleanup(s.Close)
			p := telemetry.New()
			listen := strings.TrimPrefix(s.URL, "http://")
			settings(t, p).Listen = listen
			plugins := []pipeline.Plugin{p}
			if tc.members != nil {
				plugins = append(plugins, *tc.members)
			}
			checks := examine(t, tc.env, plugins...)
			conditions, _, err := p.ReadConditions(t.Context())
			if tc.because == "" {
				require.NoError(t, err)
				require.Len(t, conditions, 1)
				require.NotContains(t, fmt.Sprint(checks), "another one")
				return
			}
			says := "none of this deployment runs at " + listen + ", where the instance mill-1 of another one answers: " + tc.because
			require.Len(t, checks, 1)
			require.Equal(t, operate.Warn, checks[0].Level)
			require.Equal(t, says, checks[0].Text)
			require.EqualError(t, err, says+"; "+checks[0].Remedy)
			require.Empty(t, conditions)
		})
	}
}

// An instance says who it is.
func TestTheReadinessSaysWhoAnswers(t *testing.T) {
	t.Parallel()
	f := newFeature()
	f.offer = club{self: "p1"}
	_, r := ready(t, serve(t, f))
	require.Equal(t, "p1", r.Process)
	require.Contains(t, r.Instance, "test-")
}
