package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Trouble that is really there raises the alerts that are for it, and no others of those that send
// a person somewhere else.
func TestRealTroubleRaisesItsAlerts(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	const simulator, ledger = "MILLRACE__PLUGINS__PROMOTION__MONEY_API__SIMULATOR__", "MILLRACE__PLUGINS__PROMOTION__LEDGER__"
	rules := map[string]rulefmt.Rule{}
	for _, rule := range alerts(t) {
		rules[rule.Alert] = rule
	}
	binary(t) // built before the clocks run
	for name, c := range map[string]struct {
		env, flags  []string
		raised, not []string
	}{
		"the token has expired": {
			env:    []string{simulator + "UNAUTHORIZED=true"},
			raised: []string{"MillraceFarSideMisconfigured", "MillraceFarSideBreakerOpen"},
			not:    []string{"MillraceDeadLetters", "MillraceUnknownPayouts", "MillraceFarSideUncertain"},
		},
		"the Money API refuses every payout": {
			env:    []string{simulator + "REJECT_RATE=1"},
			raised: []string{"MillraceDeadLetters", "MillraceDeadLettersWaiting"},
			not:    []string{"MillraceUnknownPayouts", "MillraceFarSideMisconfigured"},
		},
		"the Money API answers 500 to sends and lookups, and a payout has one of each": {
			flags:  []string{"--fail-rate", "1", "--timeout-rate", "0"},
			env:    []string{ledger + "MAX_RETRIES=0"},
			raised: []string{"MillraceFarSideUncertain", "MillraceUnknownPayouts", "MillraceDeadLetters"},
			not:    []string{"MillraceFarSideMisconfigured", "MillraceEntriesLost"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			started := time.Now()
			base, log := operated(t, 40, c.flags, c.env...)
			require.Eventually(t, func() bool {
				resp, err := http.Get(base + "/livez")
				if err == nil {
					_ = resp.Body.Close()
				}
				return err == nil
			}, 2*time.Minute, 10*time.Millisecond, "the operations server answers: %s", log)
			e, r := newEngine(t), newRecorded()
			fires := func(alert string) bool {
				now, err := eval(t.Context(), e, r, rules[alert].Expr, r.last)
				require.NoError(t, err, alert)
				return len(now) > 0
			}
			r.scrape(t, base)
			r.sinceZero(started)
			began := time.Now()
			for waiting := c.raised; len(waiting) > 0; {
				r.scrape(t, base)
				if fires(waiting[0]) {
					waiting = waiting[1:]
					continue
				}
				require.Less(t, time.Since(began), 2*time.Minute, "%s is not raised: %s", waiting, log)
				pause(t, 250*time.Millisecond)
			}
			for _, alert := range c.not {
				require.False(t, fires(alert), "%s is raised, too", alert)
			}
		})
	}
}
