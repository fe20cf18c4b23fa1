package e2e

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// desk is a world with a working copy of dead letters, in the ledger's database, and the person who works on it.
type desk struct {
	*world
	store *letters.Store
}

func (w *world) desk() *desk {
	w.t.Helper()
	dsn := w.settings["plugins.promotion.ledger.dsn"].(string)
	w.set("plugins.deadletter.store.dsn", dsn)
	s, err := letters.Connect(w.t.Context(), pipeline.NewSecret(dsn), nil)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, s.Close()) })
	require.NoError(w.t, s.Migrate(w.t.Context()))
	return &desk{w, s}
}

// count returns how many letters there are in these states; without any, in all.
func (d *desk) count(states ...letters.State) int {
	d.t.Helper()
	n, err := d.store.Count(d.t.Context(), letters.Filter{States: states})
	require.NoError(d.t, err)
	return int(n)
}

func (d *desk) await(n int, states ...letters.State) {
	d.t.Helper()
	require.Eventually(d.t, func() bool { return d.count(states...) == n }, time.Minute, 50*time.Millisecond, "%d letters are %v", n, states)
}

// work runs a command that changes letters, which ends with a code, and returns its report.
func (d *desk) work(code int, args ...string) deadletter.Report {
	d.t.Helper()
	out, got := d.command(append([]string{"dead"}, append(args, "--json")...)...)
	require.Equal(d.t, code, got, "%s", out)
	var r deadletter.Report
	require.NoError(d.t, json.NewDecoder(strings.NewReader(out)).Decode(&r), "%s", out)
	return r
}

// An API refuses a whole campaign; when it is mended every payout is replayed, by somebody whose machine fails twice
// on the way, and is paid once.
func TestDeadLettersAreReplayedOnce(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		const n = 400
		w := onServers(t, "redis", moneysim.Faults{RejectRate: 1}).desk()
		w.start()
		w.publish("POINT", n)
		w.awaitSettled("POINT", n, time.Minute)
		require.EqualValues(t, n, w.counts("POINT").Failed)
		w.await(n, letters.Open)

		var list struct {
			Groups []letters.Group
		}
		w.mustCommand(&list, "dead", "list", "--group", "--plugin", "promotion")
		require.Len(t, list.Groups, 1, "one kind of error")
		require.EqualValues(t, n, list.Groups[0].Letters)
		kind := []string{"--fingerprint", list.Groups[0].Fingerprint}
		require.Equal(t, n, w.work(0, append([]string{"replay", "--dry-run"}, kind...)...).Selected)
		require.Equal(t, n, w.count(letters.Open), "a dry run does nothing")

		// One of them, while the API still refuses: it comes back, and is parked.
		example := list.Groups[0].Example
		require.Equal(t, 1, w.work(0, "replay", example, "--why", "is it mended?").Replayed)
		w.await(1, letters.Parked)
		var shown deadletter.Shown
		w.mustCommand(&shown, "dead", "show", example)
		require.Equal(t, 2, shown.Generation)
		require.Contains(t, *shown.Text, `"targetId"`)
		require.Equal(t, "promotion.point.stream", shown.Handler)
		require.Equal(t, "campaign-promotion-point-publish", shown.Source.Name)
		require.Regexp(t, `^POINT:12345:[0-9]+$`, shown.Subject)

		require.NoError(t, w.api.SetFaults(moneysim.Faults{}))
		args := append([]string{"dead", "replay", "--who", "ann", "--why", "the API is mended", "--config", w.config("replay", nil)}, kind...)
		for _, enough := range []int{n / 5, n / 2} {
			cmd := exec.Command(binary(t), append(args, "--rate", "100/s")...) // it is not over before it is killed
			require.NoError(t, cmd.Start())
			require.Eventually(t, func() bool { return w.count(letters.Replayed) >= enough }, time.Minute, time.Millisecond, "%d are replayed", enough)
			require.NoError(t, cmd.Process.Kill())
			_ = cmd.Wait()
			require.Positive(t, w.count(letters.Open, letters.Replaying), "it was killed in the middle")
		}
		w.work(0, append([]string{"replay", "--why", "the machine is back"}, kind...)...)
		require.Equal(t, 1, w.count(letters.Open, letters.Replaying, letters.Parked), "the parked one waits to be asked for")
		w.awaitPaid("POINT", n-1, time.Minute)
		require.Equal(t, 1, w.work(0, "replay", "--class", shown.Class, "--parked", "--why", "now it is").Replayed)
		w.awaitPaid("POINT", n, time.Minute)
		w.assertBooks("POINT", n)
		c := w.counts("POINT")
		require.Equal(t, []int64{n, 0, 0}, []int64{c.Paid, c.Failed, c.Pending}, "the summary")

		// Again, and there is nothing to do.
		require.Zero(t, w.work(0, "replay", "--all", "--parked", "--why", "to be sure").Selected)
		require.Equal(t, 1, w.work(0, "replay", example, "--parked", "--why", "to be sure").Already)
		w.assertBooks("POINT", n)
		w.eachReplayedOnce(n)
	})
}

// eachReplayedOnce asserts that every letter was replayed, once a generation, by what was recorded.
func (d *desk) eachReplayedOnce(n int) {
	d.t.Helper()
	list, total, err := d.store.List(d.t.Context(), letters.Filter{States: []letters.State{letters.Replayed}}, n+1)
	require.NoError(d.t, err)
	require.EqualValues(d.t, n, total)
	died := 0
	for _, l := range list {
		_, actions, err := d.store.Get(d.t.Context(), l.ID)
		require.NoError(d.t, err)
		effects := map[int]int{}
		for _, a := range actions {
			require.NotEmpty(d.t, a.Why+a.Detail, "who, when and why are there: %+v", a)
			switch a.Outcome {
			case letters.OutcomeReplayed:
				effects[a.Generation]++
			case letters.OutcomeBegun:
				died++
			}
		}
		for generation, times := range effects {
			require.Equal(d.t, 1, times, "letter %s in generation %d", l.ID, generation)
		}
	}
	d.t.Logf("%d letters were in hand when their replay was killed", died)
}

// What must not be replayed is refused, and what has no payout goes back to its topic.
func TestDeadLettersThatAreNoPayouts(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		w := onServers(t, "redis", moneysim.Faults{RejectRate: 1}).desk()
		w.start()
		w.send("campaign-promotion-point-publish",
			point(w.promotion, 1, "100"),
			point(w.promotion, 1, "999"), // conflict
			`{"promotionId":`)            // undecodable
		w.awaitSettled("POINT", 1, time.Minute)
		w.await(3, letters.Open)

		var list struct {
			Letters []letters.Letter
		}
		w.mustCommand(&list, "dead", "list", "--class", "undecodable")
		require.Len(t, list.Letters, 1)
		bad := list.Letters[0]
		require.Equal(t, "campaign-promotion-point-publish", bad.Source.Name)
		require.EqualValues(t, 2, *bad.Source.Offset)
		require.Equal(t, 1, w.work(0, "replay", "--class", "undecodable", "--why", "try").Replayed)
		w.await(1, letters.Parked)
		require.Equal(t, 3, w.count(), "what came back is no other letter")
		require.Zero(t, w.work(0, "replay", "--class", "undecodable", "--why", "try").Selected, "it is not looped")
		require.Equal(t, 1, w.work(0, "replay", bad.ID, "--parked", "--why", "try").Replayed)
		w.await(1, letters.Parked)
		var shown deadletter.Shown
		w.mustCommand(&shown, "dead", "show", bad.ID)
		require.Equal(t, 3, shown.Generation)
		require.Equal(t, `{"promotionId":`, *shown.Text)
		require.Equal(t, 1, w.work(0, "discard", bad.ID, "--why", "it is no JSON").Discarded)

		w.mustCommand(nil, "campaign", "cancel", "POINT", "12345", "--why", "a test")
		r := w.work(1, "replay", "--all", "--why", "the API is mended")
		require.Equal(t, 2, r.Refused, "%+v", r)
		var reasons []string
		for _, l := range r.Letters {
			reasons = append(reasons, l.Reason)
		}
		require.ElementsMatch(t, []string{"POINT:12345:1: its promotion is cancelled",
			"another request for POINT:12345:1 came first, and the first one wins"}, reasons)
		require.Equal(t, 2, w.count(letters.Open), "they wait as before")
		require.EqualValues(t, 1, w.counts("POINT").Failed)
		require.Zero(t, w.api.Summary().DoubleCharged)
	})
}
