package cli

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The console finds who has reset which job, and why.
func TestResetsAreInTheAudit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		job := r.name + "/" + r.job
		code, _, stderr := r.command("reset", job, "--who", "ann", "--why", "the worker was retried")
		require.Zero(t, code, stderr)
		code, _, stderr = r.command("reset", job, "--who", "ann (console)", "--why", "once more")
		require.NotZero(t, code)
		require.Contains(t, stderr, "--who must not be schedule, nor end as the console and its API end the name of a person")
		server := redis.New().Server(&r.own)
		require.NoError(t, server.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
		page, err := jobs{}.settings(r.domain).RecentResets(t.Context(), server, operate.AuditFilter{Subject: r.job}, 5)
		require.NoError(t, err)
		require.Len(t, page.Changes, 2)
		for i, outcome := range []string{"done", "begun"} { // the newest first
			c := page.Changes[i]
			require.Equal(t, []string{"reset", job, "ann", "the worker was retried", outcome}, []string{c.Action, c.Subject, c.Who, c.Why, c.Outcome})
			require.False(t, c.At.IsZero())
		}
	})
}
