package promotion

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
)

func TestChecksOfTheMoneyAPI(t *testing.T) {
	t.Parallel()
	sim, err := simulator.New(simulator.Config{Token: setting.NewSecret("right")})
	require.NoError(t, err)
	require.NoError(t, sim.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, sim.Stop(context.Background())) })
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	for name, tc := range map[string]struct {
		url, token string
		simulated  bool
		level      operate.Level
		text       string
		away       bool
	}{
		"it answers":          {sim.URL(), "right", false, operate.OK, "the charge DOCTOR:1:1 does not exist", false},
		"a wrong token":       {sim.URL(), "wrong", false, operate.Fail, "refuses the credential", false},
		"another program":     {other.URL, "right", false, operate.Fail, "does not answer the lookup", false},
		"nobody listens":      {"http://127.0.0.1:1", "right", false, operate.Fail, "connection refused", true},
		"the simulator pays":  {"", "", true, operate.Warn, "no money moves", false},
		"the url is mistaken": {"ftp://a", "", false, operate.Fail, "url: must be http:// or https://", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &Plugin{config: DefaultConfig()}
			api := &p.config.MoneyAPI
			api.URL, api.Token, api.Simulator.Enabled = tc.url, setting.NewSecret(tc.token), tc.simulated
			api.CallTimeout, api.ConnectTimeout = 2*time.Minute, 2*time.Minute // the machine may be busy
			d := operate.Diagnose(t.Context(), p.Examinations(), 2*time.Minute, nil)
			if !tc.simulated { // the connection has a line of its own, which says what to do
				require.Equal(t, "money-api "+tc.url+" connection", d.Checks[0].Name)
				require.Equal(t, d.Checks[0].Level == operate.OK, d.Checks[0].Remedy == "")
				d.Checks = d.Checks[1:]
			}
			require.Len(t, d.Checks, 1)
			require.Equal(t, tc.level, d.Checks[0].Level, d.Checks)
			require.Contains(t, d.Checks[0].Text, tc.text)
			require.Equal(t, tc.away, slices.Contains(d.Away, "money-api"), d.Checks)
			var instance app.Simulating = p
			require.Equal(t, tc.simulated, instance.Simulates(), "as the label of its metrics says")
		})
	}
}

func TestAKeyThatEndsBeforeTheRetriesIsWarnedOf(t *testing.T) {
	t.Parallel()
	p := &Plugin{config: DefaultConfig()}
	found, err := p.keyAge(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
	p.config.Ledger.IdempotencyTTL = (1+2+4+8+16)*time.Second + 5*p.config.MoneyAPI.CallTimeout
	api := &p.config.MoneyAPI
	api.Simulator.Enabled = true
	checks := operate.Diagnose(t.Context(), p.Examinations(), 2*time.Minute, nil).Checks
	require.Equal(t, "payouts keys", checks[0].Name)
	require.Equal(t, operate.Warn, checks[0].Level)
	require.Contains(t, checks[0].Text, "later ones wait for a lookup")
}

func TestChecksOfAnswers(t *testing.T) {
	t.Parallel()
	c, err := lookupCheck(money.Answer{Class: money.Throttled, Status: 429, Text: "429 Too Many Requests"}, "https://api")
	require.NoError(t, err)
	require.Equal(t, operate.Warn, c.Level)
	require.Contains(t, c.Text, "https://api answers that it takes no calls at this moment: 429")
	_, err = lookupCheck(money.Answer{Class: money.Ambiguous, Text: "no answer"}, "https://api")
	require.Error(t, err, "a request without an answer")
}
