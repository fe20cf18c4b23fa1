package deadletter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// service runs the plugin as the process of a pipeline does, and returns its registry and its actions by name.
func (o *office) service(broker Transport) (*pipeline.Registry, map[string]operate.Action) {
	o.t.Helper()
	p := New(broker).StoreIn(sqldb.Databases{})
	p.config.Store = o.plugin().config.Store
	ledger := ledgerOf{o.payouts}
	reg := pipelinetest.Start(o.t, broker.(pipeline.Plugin), serves{ledger}, p)
	actions := map[string]operate.Action{}
	for _, a := range p.Operations().Actions {
		actions[a.Name] = a
	}
	return reg, actions
}

// serves is a plugin that runs its ledger.
type serves struct{ ledgerOf }

func (s serves) Register(r *pipeline.Registry) error {
	return errors.Join(s.ledgerOf.Register(r), s.payouts.Register(r))
}

// A process that runs routes replays and discards with the same code as a command, and with what it has started.
func TestActionsOfARunningProcess(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1), order(2), payoutDeadLetter(5), payoutDeadLetter(6))
		kafka := &server{o.topics, "kafka", 0}
		reg, actions := o.service(kafka)
		replay, discard := actions["deadletter replay"], actions["deadletter discard"]
		for _, a := range actions {
			require.Equal(t, []any{operate.Operator, operate.Irreversible, true}, []any{a.Role, a.Danger, a.Audited}, a.Name)
		}
		ids := operate.Input{"id": {order(1).ID, payoutDeadLetter(5).ID}}

		a, err := replay.Preview(t.Context(), reg, operate.Input{"all": {"true"}})
		require.NoError(t, err)
		require.Equal(t, []string{"4 dead letters match: 2 without a subject, 2 about P.", "4 dead letters: 4 would be replayed; nothing was changed."}, a.Notes)
		require.Equal(t, 4, o.waiting())

		var steps [][2]int64
		a, err = replay.Do(t.Context(), reg, ids, operate.Use{ID: "click", Who: "ann", Why: "fixed", Progress: func(done, total int64) { steps = append(steps, [2]int64{done, total}) }})
		require.NoError(t, err)
		require.Equal(t, 2, a.Value.(*cli.Report).Replayed)
		require.Equal(t, [][2]int64{{0, 2}, {1, 2}, {2, 2}}, steps)
		_, recorded, err := o.store.Get(t.Context(), order(1).ID)
		require.NoError(t, err)
		require.Equal(t, []string{"ann", "fixed"}, []string{recorded[0].Who, recorded[0].Why})

		a, err = discard.Do(t.Context(), reg, operate.Input{"all": {"true"}}, operate.Use{Who: "bob", Why: "void"})
		require.NoError(t, err)
		require.Equal(t, 2, a.Value.(*cli.Report).Discarded)
		_, err = replay.Do(t.Context(), reg, operate.Input{}, operate.Use{})
		require.ErrorContains(t, err, "select dead letters")
		a, err = replay.Do(t.Context(), reg, operate.Input{"id": {"nothing"}}, operate.Use{Who: "ann", Why: "x"})
		var exit *app.ExitError
		require.ErrorAs(t, err, &exit)
		require.Equal(t, 1, a.Value.(*cli.Report).Skipped, "also with an error there is a report")
		require.Equal(t, []int{1, 1}, []int{kafka.starts, o.payouts.started}, "nothing was started or stopped for them")
	})
}

// A click arrives twice, and another person replays everything at the same time: each dead letter is replayed once.
func TestADoubleClickActsOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		const n = 10
		for i := range n {
			o.put(order(i), payoutDeadLetter(i))
		}
		reg, actions := o.service(&server{o.topics, "kafka", 0})
		var group sync.WaitGroup
		replayed := make([]int, 4)
		for i := range replayed {
			use := operate.Use{ID: "click", Who: "ann", Why: "fixed"}
			if i == 3 {
				use.ID, use.Who = "another", "bob"
			}
			group.Go(func() {
				a, err := actions["deadletter replay"].Do(t.Context(), reg, operate.Input{"all": {"true"}, "parked": {"true"}}, use)
				if err != nil {
					t.Error(err)
					return
				}
				replayed[i] = a.Value.(*cli.Report).Replayed
			})
		}
		group.Wait()
		require.Equal(t, 2*n, replayed[0]+replayed[1]+replayed[2]+replayed[3], "%v", replayed)
		require.Len(t, o.topics.payloads("orders"), n)
		require.Len(t, o.payouts.calls, n)

		again := order(1)
		again.ID, again.Headers = "again", map[string]string{pipeline.MetaReplay: order(1).ReplayHeader()}
		o.put(again)
		for range 2 { // one of the two clicks may have replayed it: each acts once
			for _, use := range []string{"click", "another"} {
				_, err := actions["deadletter replay"].Do(t.Context(), reg, operate.Input{"id": {order(1).ID}, "parked": {"true"}}, operate.Use{ID: use, Who: "ann", Why: "fixed"})
				require.NoError(t, err)
			}
		}
		times := 0
		for _, payload := range o.topics.payloads("orders") {
			if payload == "order 1" {
				times++
			}
		}
		require.Equal(t, 2, times, "the click that had replayed it does not replay it again")
	})
}

// The process ends in the middle of a use, before or after the effect. The same use goes on in the next process.
func TestAnInterruptedActionIsContinued(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1), payoutDeadLetter(2), payoutDeadLetter(3))
		click := store.By{Who: "ann", Why: "fixed", Use: "click"}
		for _, id := range []string{order(1).ID, payoutDeadLetter(2).ID} {
			_, err := o.store.Begin(t.Context(), id, click, false)
			require.NoError(t, err)
		}
		o.payouts.done[payoutDeadLetter(2).ID+"/1"] = 1 // its effect was done
		o.endLeases()
		reg, actions := o.service(&server{o.topics, "kafka", 0})
		use := operate.Use{ID: "click", Who: "ann", Why: "fixed"}
		a, err := actions["deadletter replay"].Do(t.Context(), reg, operate.Input{"all": {"true"}}, use)
		require.NoError(t, err)
		r := a.Value.(*cli.Report)
		require.Equal(t, []int{3, 2, 1, 2}, []int{r.Selected, r.Replayed, r.Already, r.Resumed}, "%+v", r)
		require.Equal(t, []string{"order 1"}, o.topics.payloads("orders"))
		for header, times := range o.payouts.done {
			require.Equal(t, 1, times, header)
		}
		require.Zero(t, o.waiting())
	})
}

// Where a store is configured and not open, and where nothing is stored, an action says so instead of failing.
func TestActionsWithoutAStore(t *testing.T) {
	t.Parallel()
	o := newOffice(t, "")
	reg, actions := o.service(&server{o.topics, "kafka", 0})
	_, err := actions["deadletter replay"].Do(t.Context(), reg, operate.Input{"all": {"true"}}, operate.Use{Who: "ann", Why: "x"})
	require.ErrorContains(t, err, "dead letters are not stored: plugins.deadletter.store.dsn is not set")
	p := o.plugin()
	p.config.Store.DSN = newOffice(t, "sqlite:"+t.TempDir()+"/x.db").plugin().config.Store.DSN
	_, err = p.Operations().Reports[0].Read(context.Background(), reg, operate.Input{"limit": {"1"}})
	require.ErrorIs(t, err, pipeline.ErrUnavailable, fmt.Sprint(err))
}
