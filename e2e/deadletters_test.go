package e2e

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// storeDeployment is a deployment with a store of dead letters, in the ledger's database.
type storeDeployment struct {
	*deployment
	store *store.Store
}

func (w *deployment) withStore() *storeDeployment {
	w.t.Helper()
	dsn := w.settings["plugins.promotion.ledger.dsn"].(string)
	w.set("plugins.deadletter.store.dsn", dsn)
	s, err := store.Connect(w.t.Context(), sqldb.Databases{}, setting.NewSecret(dsn), nil)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, s.Close()) })
	_, err = store.Schema(sqldb.Databases{}, setting.NewSecret(dsn), "", nil).Migrate(w.t.Context())
	require.NoError(w.t, err)
	return &storeDeployment{w, s}
}

// count returns the number of dead letters in these states; without any, in all.
func (d *storeDeployment) count(states ...store.State) int {
	d.t.Helper()
	n, err := d.store.Count(d.t.Context(), store.Filter{States: states})
	require.NoError(d.t, err)
	return int(n)
}

func (d *storeDeployment) await(n int, states ...store.State) {
	d.t.Helper()
	require.Eventually(d.t, func() bool { return d.count(states...) == n }, 2*time.Minute, 50*time.Millisecond, "%d dead letters are %v", n, states)
}

// work runs a command that changes dead letters, expects its exit code, and returns its report.
func (d *storeDeployment) work(code int, args ...string) cli.Report {
	d.t.Helper()
	out, got := d.command(append([]string{"deadletter"}, append(args, "--json")...)...)
	require.Equal(d.t, code, got, "%s", out)
	var r cli.Report
	require.NoError(d.t, json.NewDecoder(strings.NewReader(out)).Decode(&r), "%s", out)
	return r
}

// The API rejects a campaign. When it is fixed, a person replays all payouts. The command is killed
// twice, and each payout is paid once.
func TestDeadLettersAreReplayedOnce(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.DeadLetter)
	const n = 400
	w := onServers(t, "redis", simulator.Faults{RejectRate: 1}).withStore()
	w.start()
	w.publish("POINT", n)
	w.awaitSettled("POINT", n, time.Minute)
	require.EqualValues(t, n, w.counts("POINT").Failed)
	w.await(n, store.Open)

	var list struct {
		Groups []store.Group
	}
	w.mustCommand(&list, "deadletter", "list", "--group", "--plugin", "promotion")
	require.Len(t, list.Groups, 1, "one group")
	require.EqualValues(t, n, list.Groups[0].Count)
	group := []string{"--fingerprint", list.Groups[0].Fingerprint}
	require.Equal(t, n, w.work(0, append([]string{"replay", "--dry-run"}, group...)...).Selected)
	require.Equal(t, n, w.count(store.Open), "a dry run does nothing")

	// A replay while the API still rejects: the payout fails again, and is parked.
	example := list.Groups[0].Example
	require.Equal(t, 1, w.work(0, "replay", example, "--why", "is it fixed?").Replayed)
	w.await(1, store.Parked)
	var shown cli.Shown
	w.mustCommand(&shown, "deadletter", "show", example)
	require.Equal(t, 2, shown.Generation)
	require.Contains(t, *shown.Text, `"targetId"`)
	require.Equal(t, "promotion.point.stream", shown.Handler)
	require.Equal(t, "campaign-promotion-point-publish", shown.Source.Name)
	require.Regexp(t, `^POINT:12345:[0-9]+$`, shown.Subject)

	require.NoError(t, w.api.SetFaults(simulator.Faults{}))
	args := append([]string{"deadletter", "replay", "--who", "ann", "--why", "the API is fixed", "--config", w.config("replay", nil)}, group...)
	for _, enough := range []int{n / 5, n / 2} {
		cmd := exec.Command(binary(t), append(args, "--rate", "100/s")...) // it lasts
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool { return w.count(store.Replayed) >= enough }, 2*time.Minute, time.Millisecond, "%d are replayed", enough)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.Positive(t, w.count(store.Open, store.Replaying), "it was killed in the middle")
	}
	w.work(0, append([]string{"replay", "--why", "the machine is back"}, group...)...)
	require.Equal(t, 1, w.count(store.Open, store.Replaying, store.Parked), "the parked one is not selected")
	w.awaitPaid("POINT", n-1, time.Minute)
	require.Equal(t, 1, w.work(0, "replay", "--class", shown.Class, "--parked", "--why", "now it is").Replayed)
	w.awaitPaid("POINT", n, time.Minute)
	w.assertBalanced("POINT", n)
	c := w.counts("POINT")
	require.Equal(t, []int64{n, 0, 0}, []int64{c.Paid, c.Failed, c.Pending}, "the summary")

	// Again, and there is nothing to do.
	require.Zero(t, w.work(0, "replay", "--all", "--parked", "--why", "to be sure").Selected)
	require.Equal(t, 1, w.work(0, "replay", example, "--parked", "--why", "to be sure").Already)
	w.assertBalanced("POINT", n)
	w.eachReplayedOnce(n)
}

// eachReplayedOnce asserts by the recorded actions that each dead letter was replayed once per
// generation.
func (d *storeDeployment) eachReplayedOnce(n int) {
	d.t.Helper()
	list, total, err := d.store.List(d.t.Context(), store.Filter{States: []store.State{store.Replayed}}, n+1)
	require.NoError(d.t, err)
	require.EqualValues(d.t, n, total)
	killed := 0
	for _, l := range list {
		_, actions, err := d.store.Get(d.t.Context(), l.ID)
		require.NoError(d.t, err)
		effects := map[int]int{}
		for _, a := range actions {
			require.NotEmpty(d.t, a.Why+a.Detail, "who, when and why are there: %+v", a)
			switch a.Outcome {
			case store.OutcomeReplayed:
				effects[a.Generation]++
			case store.OutcomeStarted:
				killed++
			}
		}
		for generation, times := range effects {
			require.Equal(d.t, 1, times, "dead letter %s in generation %d", l.ID, generation)
		}
	}
	d.t.Logf("%d replays had not finished when the command was killed", killed)
}

// A replay that is not allowed is refused. A message without a payout goes back to its topic.
func TestDeadLettersThatAreNoPayouts(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, "redis", simulator.Faults{RejectRate: 1}).withStore()
	w.start()
	w.send("campaign-promotion-point-publish",
		point(w.promotion, 1, "100"),
		point(w.promotion, 1, "999"), // conflict
		`{"promotionId":`)            // undecodable
	w.awaitSettled("POINT", 1, time.Minute)
	w.await(3, store.Open)

	var list struct {
		DeadLetters []store.DeadLetter `json:"dead_letters"`
	}
	w.mustCommand(&list, "deadletter", "list", "--class", "undecodable")
	require.Len(t, list.DeadLetters, 1)
	bad := list.DeadLetters[0]
	require.Equal(t, "campaign-promotion-point-publish", bad.Source.Name)
	require.Regexp(t, `^campaign-promotion-point-publish/[0-9]+@2$`, bad.Source.Position)
	require.Equal(t, 1, w.work(0, "replay", "--class", "undecodable", "--why", "try").Replayed)
	w.await(1, store.Parked)
	require.Equal(t, 3, w.count(), "the failed replay is the same dead letter")
	require.Zero(t, w.work(0, "replay", "--class", "undecodable", "--why", "try").Selected, "it is not looped")
	require.Equal(t, 1, w.work(0, "replay", bad.ID, "--parked", "--why", "try").Replayed)
	w.await(1, store.Parked)
	var shown cli.Shown
	w.mustCommand(&shown, "deadletter", "show", bad.ID)
	require.Equal(t, 3, shown.Generation)
	require.Equal(t, `{"promotionId":`, *shown.Text)
	require.Equal(t, 1, w.work(0, "discard", bad.ID, "--why", "it is no JSON").Discarded)

	w.mustCommand(nil, "campaign", "cancel", "POINT", "12345", "--why", "a test")
	r := w.work(1, "replay", "--all", "--why", "the API is fixed")
	require.Equal(t, 2, r.Refused, "%+v", r)
	var reasons []string
	for _, l := range r.DeadLetters {
		reasons = append(reasons, l.Reason)
	}
	require.ElementsMatch(t, []string{"POINT:12345:1: its promotion is cancelled",
		"another request for POINT:12345:1 came first, and the first one wins"}, reasons)
	require.Equal(t, 2, w.count(store.Open), "they wait as before")
	require.EqualValues(t, 1, w.counts("POINT").Failed)
	require.Zero(t, w.api.Summary().Doubled)
}
