package deadletter

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// second is the letter of a record that came second for a payout.
func second(target, n int) letters.Letter {
	l := Letter{Topic: "payouts-dead", ID: letters.ID("second", fmt.Sprint(target, n)), Subject: fmt.Sprint("P:", target), Alone: true,
		DeadLetter: pipeline.DeadLetter{Payload: []byte("{}"), Class: "conflict", Error: "differs", Handler: "payouts.pay", FirstFailedAt: died(n), FailedAt: died(n)}}
	return l.kept("payouts")
}

func ids(list []letters.Letter) []string {
	out := []string{}
	for _, l := range list {
		out = append(out, l.ID)
	}
	return out
}

// What another plugin settles is discarded here, by its name and reason, and nothing else is.
func TestWhatIsSettledOtherwise(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		mine, other, conflict := payoutLetter(5), payoutLetter(6), second(5, 9)
		stranger := Letter{ID: "stranger", Subject: "P:5", DeadLetter: pipeline.DeadLetter{Handler: "refunds.pay"}}
		o.put(mine, other, conflict, stranger.kept("refunds"))
		by := letters.By{Who: "ann", Why: "resolved: seen in their book"}
		for name, start := range map[string]bool{"a plugin that is not started": false, "a plugin that is": true} {
			p := o.plugin()
			if start {
				service := &store{plugin: p}
				require.NoError(t, service.Start(t.Context()))
				t.Cleanup(func() { require.NoError(t, service.Stop(context.Background())) })
			}
			about, err := p.About(t.Context(), "payouts", "P:5")
			require.NoError(t, err, name)
			require.Equal(t, []string{conflict.ID, mine.ID}, ids(about), "%s: newest first", name)
			require.Nil(t, about[0].Payload)

			for _, want := range [][]string{{mine.ID}, nil} { // again, and there is nothing to do
				got, err := p.Settled(t.Context(), "payouts", "P:5", by)
				require.NoError(t, err, name)
				require.Equal(t, want, got, name)
			}
			l, actions, err := o.store.Get(t.Context(), mine.ID)
			require.NoError(t, err)
			require.Equal(t, letters.Discarded, l.State)
			last := actions[len(actions)-1]
			require.Equal(t, []string{letters.ActionDiscard, by.Who, by.Why}, []string{last.Action, last.Who, last.Why})
			for _, id := range []string{other.ID, conflict.ID, "stranger"} {
				require.Equal(t, letters.Open, o.state(id), "%s: %s is not about what became of P:5", name, id)
			}
			mine.Failed = mine.Failed.Add(1e9) // it is given up again, and waits for the next case
			o.put(mine)
			require.Equal(t, letters.Parked, o.state(mine.ID))
		}

		for name, wrong := range map[string]func(*Plugin) error{
			"who settled it and why": func(p *Plugin) error {
				_, err := p.Settled(t.Context(), "payouts", "P:5", letters.By{Who: "ann"})
				return err
			},
			"both must be named": func(p *Plugin) error { _, err := p.About(t.Context(), "payouts", ""); return err },
		} {
			require.ErrorContains(t, wrong(o.plugin()), name)
		}
	})
}

// Whoever settles waits for a replay, which may hold the very letter.
func TestSettlingTakesTheTurn(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(payoutLetter(5))
		turn, _, err := o.store.Take(t.Context(), "somebody")
		require.NoError(t, err)
		p := o.plugin()
		none, err := p.Settled(t.Context(), "payouts", "P:6", letters.By{Who: "ann", Why: "x"})
		require.NoError(t, err, "without a letter nobody is waited for")
		require.Empty(t, none)

		short, cancel := context.WithTimeout(t.Context(), 2*turnPoll)
		defer cancel()
		_, err = p.Settled(short, "payouts", "P:5", letters.By{Who: "ann", Why: "x"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, letters.Open, o.state(payoutLetter(5).ID))
		require.NoError(t, turn.Release(t.Context()))
		got, err := p.Settled(t.Context(), "payouts", "P:5", letters.By{Who: "ann", Why: "x"})
		require.NoError(t, err)
		require.Equal(t, []string{payoutLetter(5).ID}, got)
	})
}

func TestNothingIsSettledWithoutAWorkingCopy(t *testing.T) {
	t.Parallel()
	p := New(newTopics(), nil)
	got, err := p.Settled(t.Context(), "payouts", "P:5", letters.By{Who: "ann", Why: "x"})
	require.NoError(t, err)
	require.Empty(t, got)
	about, err := p.About(t.Context(), "payouts", "P:5")
	require.NoError(t, err)
	require.Empty(t, about)
	p.config.Store.DSN = pipeline.NewSecret("postgres://nobody@127.0.0.1:1/none")
	short, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	_, err = p.About(short, "payouts", "P:5")
	require.ErrorIs(t, err, pipeline.ErrUnavailable)
}
