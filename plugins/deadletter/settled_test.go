package deadletter

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// second is the dead letter of a second record for a payout.
func second(target, n int) store.DeadLetter {
	l := Entry{Topic: "payouts-dead", ID: store.ID("second", fmt.Sprint(target, n)), Subject: fmt.Sprint("P:", target), Detached: true,
		DeadLetter: pipeline.DeadLetter{Payload: []byte("{}"), Class: "conflict", Error: "differs", Handler: "payouts.pay", FirstFailedAt: failedAt(n), FailedAt: failedAt(n)}}
	return l.row("payouts")
}

func ids(list []store.DeadLetter) []string {
	out := []string{}
	for _, l := range list {
		out = append(out, l.ID)
	}
	return out
}

// Settled discards the dead letter of the subject, and no other one.
func TestSettledDiscardsTheDeadLetterOfTheSubject(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		mine, other, conflict := payoutDeadLetter(5), payoutDeadLetter(6), second(5, 9)
		stranger := Entry{ID: "stranger", Subject: "P:5", DeadLetter: pipeline.DeadLetter{Handler: "refunds.pay"}}
		o.put(mine, other, conflict, stranger.row("refunds"))
		by := store.By{Who: "ann", Why: "resolved: seen in their book"}
		for name, start := range map[string]bool{"a plugin that is not started": false, "a plugin that is": true} {
			p := o.plugin()
			if start {
				service := &storeService{plugin: p}
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
			require.Equal(t, store.Discarded, l.State)
			last := actions[len(actions)-1]
			require.Equal(t, []string{store.ActionDiscard, by.Who, by.Why}, []string{last.Action, last.Who, last.Why})
			for _, id := range []string{other.ID, conflict.ID, "stranger"} {
				require.Equal(t, store.Open, o.state(id), "%s: %s is not about what became of P:5", name, id)
			}
			mine.Failed = mine.Failed.Add(1e9) // it fails again, and waits for the next case
			o.put(mine)
			require.Equal(t, store.Parked, o.state(mine.ID))
		}

		for name, wrong := range map[string]func(*Plugin) error{
			"person and reason are recorded": func(p *Plugin) error {
				_, err := p.Settled(t.Context(), "payouts", "P:5", store.By{Who: "ann"})
				return err
			},
			"both must be named": func(p *Plugin) error { _, err := p.About(t.Context(), "payouts", ""); return err },
		} {
			require.ErrorContains(t, wrong(o.plugin()), name)
		}
	})
}

func TestSettledWaitsForTheReplayOfTheDeadLetter(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(payoutDeadLetter(5))
		lease, err := o.store.Begin(t.Context(), payoutDeadLetter(5).ID, store.By{Who: "bob", Why: "x"}, false)
		require.NoError(t, err)
		p := o.plugin()
		none, err := p.Settled(t.Context(), "payouts", "P:6", store.By{Who: "ann", Why: "x"})
		require.NoError(t, err, "there is nothing to wait for")
		require.Empty(t, none)

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = p.Settled(short, "payouts", "P:5", store.By{Who: "ann", Why: "x"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, store.Replaying, o.state(payoutDeadLetter(5).ID))
		require.NoError(t, o.store.Finish(t.Context(), lease, store.Refuse("not now")))
		got, err := p.Settled(t.Context(), "payouts", "P:5", store.By{Who: "ann", Why: "x"})
		require.NoError(t, err)
		require.Equal(t, []string{payoutDeadLetter(5).ID}, got)
	})
}

func TestSettledWithoutAStore(t *testing.T) {
	t.Parallel()
	p := New(newTopics()).StoreIn(sqldb.Databases{})
	got, err := p.Settled(t.Context(), "payouts", "P:5", store.By{Who: "ann", Why: "x"})
	require.NoError(t, err)
	require.Empty(t, got)
	about, err := p.About(t.Context(), "payouts", "P:5")
	require.NoError(t, err)
	require.Empty(t, about)
	p.config.Store.DSN = setting.NewSecret("postgres://nobody@127.0.0.1:1/none")
	short, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	_, err = p.About(short, "payouts", "P:5")
	require.ErrorIs(t, err, pipeline.ErrUnavailable)
}
