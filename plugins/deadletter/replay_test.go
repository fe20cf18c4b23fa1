package deadletter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// office is a store, with a broker and a ledger in memory, and the commands on them.
type office struct {
	t       *testing.T
	dsn     string
	store   *store.Store
	topics  *topics
	streams *topics
	jobs    *topics // of a transport that no other test has
	payouts *payouts
	others  func(*Plugin) []pipeline.Plugin // further plugins of a command; may be nil
}

// payouts is a ledger in memory: a replay has one effect per dead letter and generation.
type payouts struct {
	mu      sync.Mutex
	calls   []string
	done    map[string]int // effects
	refused map[string]string
	broken  map[string]error // returned after the effect
	now     map[string]store.Status
	blind   error // of each preview
	absent  error // of the start
	looks   int
	until   time.Time // deadline of the last replay
	started int
}

func (p *payouts) Preview(_ context.Context, l store.DeadLetter) (store.Status, error) {
	p.looks++
	if p.started == 0 {
		return store.Status{}, errors.New("not started")
	}
	s, known := p.now[l.Subject]
	if !known {
		s = store.Status{State: "FAILED", Replay: store.Outcome{Result: store.OutcomeReplayed}}
	}
	return s, p.blind
}

func (p *payouts) Register(r *pipeline.Registry) error {
	r.Service("payouts", p)
	return nil
}

func (p *payouts) Start(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.absent == nil {
		p.started++
	}
	return p.absent
}

func (p *payouts) Stop(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started--
	return nil
}

func (p *payouts) Replay(ctx context.Context, l store.DeadLetter, by store.By) (store.Outcome, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until, _ = ctx.Deadline()
	p.calls = append(p.calls, l.Subject+" "+by.Who)
	if p.started == 0 {
		return store.Outcome{}, errors.New("not started")
	}
	if why := p.refused[l.Subject]; why != "" {
		return store.Refuse("%s", why), nil
	}
	if p.done[l.ReplayHeader()] == 0 {
		p.done[l.ReplayHeader()]++
		return store.Outcome{Result: store.OutcomeReplayed}, p.broken[l.Subject]
	}
	return store.Outcome{Result: store.OutcomeAlready}, p.broken[l.Subject]
}

// ledgerOf is a plugin whose dead letters payouts replays.
type ledgerOf struct{ *payouts }

func (ledgerOf) Name() string { return "payouts" }

func (l ledgerOf) Register(r *pipeline.Registry) error {
	r.Offer(ReplayedBy{Plugin: l.Name(), Replayer: l.payouts})
	return nil
}

func newOffice(t *testing.T, dsn string) *office {
	o := &office{t: t, dsn: dsn, topics: newTopics(), streams: newTopics(), jobs: newTopics(),
		payouts: &payouts{done: map[string]int{}, refused: map[string]string{}, broken: map[string]error{}, now: map[string]store.Status{}}}
	o.streams.kind, o.jobs.kind = "redis-stream", "job-queue"
	return o
}

// onBoth runs the test with a store in SQLite and one in PostgreSQL.
func onBoth(t *testing.T, test func(t *testing.T, o *office)) {
	t.Helper()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		o := newOffice(t, dsn)
		var err error
		o.store, err = store.Connect(t.Context(), sqldb.Databases{}, setting.NewSecret(dsn), nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, o.store.Close()) })
		_, err = store.Schema(sqldb.Databases{}, setting.NewSecret(dsn), "", nil).Migrate(t.Context())
		require.NoError(t, err)
		test(t, o)
	})
}

// plugin returns a fresh plugin, as another process has one.
func (o *office) plugin() *Plugin {
	p := New(o.topics, o.streams, o.jobs).StoreIn(sqldb.Databases{})
	p.config.Store.DSN = setting.NewSecret(o.dsn)
	return p
}

// run runs a command and returns what it writes, and its exit code.
func (o *office) run(args ...string) (string, int) {
	o.t.Helper()
	out, said, code := o.runApart(args...)
	if code != 0 {
		out += said
	}
	return out, code
}

func (o *office) runApart(args ...string) (string, string, int) {
	o.t.Helper()
	var out, said bytes.Buffer
	code := o.runInto(&out, &said, args...)
	return out.String(), said.String(), code
}

func (o *office) runInto(out, said io.Writer, args ...string) int {
	p := o.plugin()
	plugins := []pipeline.Plugin{p, ledgerOf{o.payouts}}
	if o.others != nil {
		plugins = append(plugins, o.others(p)...)
	}
	return app.Main(o.t.Context(), app.Options{
		Name: "millrace", Plugins: plugins, Args: append([]string{"deadletter"}, args...),
		Environ: []string{"MILLRACE__PLUGINS__DEADLETTER__STORE__DSN=" + o.dsn}, Stdout: out, Stderr: said,
	})
}

// report runs a command that changes dead letters, and expects its exit code.
func (o *office) report(code int, args ...string) cli.Report {
	o.t.Helper()
	out, said, got := o.runApart(append(args, "--json")...)
	require.Equal(o.t, code, got, "%s%s", out, said)
	var r cli.Report
	require.NoError(o.t, json.Unmarshal([]byte(out), &r), "%s", out)
	return r
}

func (o *office) state(id string) store.State {
	o.t.Helper()
	l, _, err := o.store.Get(o.t.Context(), id)
	require.NoError(o.t, err)
	return l.State
}

func (o *office) put(ls ...store.DeadLetter) {
	o.t.Helper()
	for _, l := range ls {
		require.NoError(o.t, o.store.Put(o.t.Context(), l))
	}
}

func failedAt(n int) time.Time { return time.Date(2026, 3, 4, 5, 6, n, 0, time.UTC) }

func order(n int) store.DeadLetter {
	return store.From("", "", "orders-dead", fmt.Sprint("uuid-", n), pipeline.DeadLetter{
		Payload: fmt.Appendf(nil, "order %d", n), Key: fmt.Sprint(n), Class: "undecodable", Error: fmt.Sprintf("bad order %d", n),
		Handler: "orders.take", SourceKind: "kafka", Source: "orders", Origin: fmt.Sprintf("orders/0@%d", n), Attempts: 1, FirstFailedAt: failedAt(n), FailedAt: failedAt(n),
		Metadata: map[string]string{"own": "header", pipeline.MetaAttempt: "3", pipeline.MetaRetryOf: "orders.take", pipeline.MetaDue: "2026-03-04T05:06:07Z", pipeline.MetaLastError: "boom"},
	})
}

func payoutDeadLetter(target int) store.DeadLetter {
	l := Entry{Topic: "payouts-dead", ID: store.ID("payouts", fmt.Sprint(target)), Subject: fmt.Sprint("P:", target), DeadLetter: pipeline.DeadLetter{
		Payload: []byte("{}"), Class: "rejected", Error: "422", Handler: "payouts.pay", SourceKind: "kafka", Source: "payouts", Origin: "payouts/0@7", Attempts: 6, FirstFailedAt: failedAt(1), FailedAt: failedAt(target),
	}}
	return l.row("payouts")
}

// entryOf is the source of an entry of a stream.
func entryOf(stream, id string) store.Source {
	return store.Source{Kind: "redis-stream", Name: stream, Position: stream + "@" + id}
}

// A dead letter of any transport is shown with the position that the transport wrote, and replayed
// into the transport.
func TestAFurtherTransport(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		job, unknown := order(1), order(2)
		job.ID, job.Source = "job", store.Source{Kind: "job-queue", Name: "mails", Position: "mails #7 of lane 3"}
		unknown.ID, unknown.Source = "unknown", store.Source{Kind: "fax", Name: "office", Position: "office"}
		o.put(job, unknown)
		out, code := o.run("show", "job")
		require.Zero(t, code, out)
		require.Regexp(t, `from +job-queue mails #7 of lane 3\n`, out)
		require.Equal(t, 1, o.report(0, "replay", "--source", "mails", "--why", "x").Replayed)
		require.Equal(t, []string{"order 1"}, o.jobs.payloads("mails"))
		require.Equal(t, "this binary has no fax", o.report(app.ExitBad, "replay", "unknown", "--why", "x").DeadLetters[0].Reason)
	})
}

func TestListAndShow(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		out, code := o.run("list")
		require.Equal(t, 0, code, out)
		require.Equal(t, "No dead letters.\n", out)
		odd := order(3)
		odd.Payload, odd.Error = []byte("\x00\xff"), "evil \x1b[2J"
		odd.ID = "odd"
		o.put(order(1), order(2), odd, payoutDeadLetter(5))

		out, code = o.run("list", "--limit", "3")
		require.Equal(t, 0, code, out)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.Len(t, lines, 5)
		require.Contains(t, lines[1], "P:5")
		require.Contains(t, lines[2], "evil \uFFFD[2J", "a terminal obeys nothing in it")
		require.Contains(t, lines[3], "orders/0@2")
		require.Contains(t, lines[4], "and 1 more")
		out, _ = o.run("list", "--class", "undecodable", "--source", "orders", "--since", failedAt(2).Format(time.RFC3339), "--json")
		require.Contains(t, out, `"total": 2`)

		out, _ = o.run("list", "--group")
		lines = strings.Split(strings.TrimSpace(out), "\n")
		require.Len(t, lines, 4, "numbers make no kind of error")
		require.Regexp(t, `^[0-9a-f]{12} +2 +undecodable +orders.take .* bad order 2$`, lines[1])
		out, _ = o.run("list", "--fingerprint", strings.Fields(lines[1])[0], "--json")
		require.Contains(t, out, `"total": 2`)

		out, code = o.run("show", order(1).ID)
		require.Equal(t, 0, code, out)
		for _, want := range []string{"open, generation 1", "undecodable: bad order 1", "orders.take", "kafka orders/0@1", "orders-dead", "uuid-1", "own = header", "order 1"} {
			require.Contains(t, out, want)
		}
		out, _ = o.run("show", "odd", "--payload")
		require.Equal(t, "\x00\xff", out, "as it came")
		out, _ = o.run("show", "odd", "--json")
		require.Contains(t, out, `"payload_base64": "AP8="`)
		out, code = o.run("show", "nothing")
		require.Equal(t, app.ExitBad, code)
		require.Contains(t, out, "no such dead letter: nothing")
	})
}

// One command replays dead letters of a ledger and of routes without one, each once.
func TestReplay(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		stream := order(8)
		stream.ID, stream.Source = "stream", entryOf("scan:orders:1", "7-0")
		lost := order(9)
		lost.ID, lost.Source = "lost", store.Source{Name: "who knows"}
		o.put(order(1), payoutDeadLetter(5), payoutDeadLetter(6), stream, lost)
		o.payouts.refused["P:6"] = "its promotion is cancelled"

		r := o.report(0, "replay", "--all", "--dry-run")
		require.Equal(t, 5, r.Selected)
		require.Empty(t, o.payouts.calls)
		require.Zero(t, o.topics.called())

		r = o.report(app.ExitBad, "replay", "--all", "--who", "ann", "--why", "the API is fixed")
		require.Equal(t, cli.Report{Selected: 5, Replayed: 3, Refused: 2, DeadLetters: []cli.Line{
			{ID: payoutDeadLetter(6).ID, Result: store.OutcomeRefused, Reason: "its promotion is cancelled"},
			{ID: "lost", Result: store.OutcomeRefused, Reason: `its origin is unknown: "who knows"`},
		}}, r)
		require.Equal(t, []string{"P:5 ann", "P:6 ann"}, o.payouts.calls)
		require.Zero(t, o.payouts.started, "its services were started for the command, and stopped")
		m := o.topics.published["orders"][0]
		require.Equal(t, "uuid-1", m.UUID, "the id it had")
		require.Equal(t, "order 1", string(m.Payload))
		require.Equal(t, map[string]string{"own": "header", pipeline.MetaKey: "1", pipeline.MetaReplay: order(1).ID + "/1"}, map[string]string(m.Metadata),
			"its own headers; its attempts begin again")
		require.Equal(t, []string{"order 8"}, o.streams.payloads("scan:orders:1"))
		require.Equal(t, store.Replayed, o.state(order(1).ID))
		require.Equal(t, store.Open, o.state(payoutDeadLetter(6).ID))
		_, actions, err := o.store.Get(t.Context(), payoutDeadLetter(6).ID)
		require.NoError(t, err)
		require.Equal(t, store.Action{Generation: 1, Action: store.ActionReplay, Who: "ann", Why: "the API is fixed", At: actions[0].At,
			Outcome: store.OutcomeRefused, Detail: "its promotion is cancelled"}, actions[0])

		// A second replay has no effect.
		r = o.report(0, "replay", order(1).ID, payoutDeadLetter(5).ID, "--who", "bob", "--why", "to be sure")
		require.Equal(t, 2, r.Already)
		require.Len(t, o.topics.payloads("orders"), 1)
		require.Len(t, o.payouts.calls, 2)
	})
}

func TestAParkedDeadLetterIsReplayedOnlyWithParked(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1))
		o.report(0, "replay", "--all", "--why", "x")
		again := order(1)
		again.ID, again.Headers = "again", map[string]string{pipeline.MetaReplay: order(1).ReplayHeader()}
		o.put(again)
		require.Equal(t, store.Parked, o.state(order(1).ID))
		require.Zero(t, o.report(0, "replay", "--all", "--why", "x").Selected)
		r := o.report(app.ExitBad, "replay", order(1).ID, "--why", "x")
		require.Equal(t, 1, r.Skipped)
		require.Contains(t, r.DeadLetters[0].Reason, "--parked")
		require.Equal(t, 1, o.report(0, "replay", "--class", "undecodable", "--parked", "--why", "x").Replayed)
		require.Equal(t, order(1).ID+"/2", o.topics.published["orders"][1].Metadata[pipeline.MetaReplay])
	})
}

// A ledger fails after the effect of a replay: the next replay resumes it.
func TestAFailedReplayIsResumedByTheNext(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(payoutDeadLetter(5), payoutDeadLetter(6))
		o.payouts.broken["P:5"] = errors.New("connection lost")
		r := o.report(app.ExitBad, "replay", "--all", "--why", "x")
		require.Equal(t, []cli.Line{{ID: payoutDeadLetter(5).ID, Result: store.OutcomeFailed, Reason: "connection lost"}}, r.DeadLetters)
		require.Equal(t, store.Replaying, o.state(payoutDeadLetter(5).ID))
		delete(o.payouts.broken, "P:5")
		r = o.report(0, "replay", "--all", "--why", "x")
		require.Equal(t, []int{1, 1}, []int{r.Already, r.Resumed})
		require.Equal(t, store.Replayed, o.state(payoutDeadLetter(5).ID))
		require.Equal(t, map[string]int{payoutDeadLetter(5).ID + "/1": 1, payoutDeadLetter(6).ID + "/1": 1}, o.payouts.done)
	})
}

// A replay ends before its lease: then another replay may hold the dead letter.
func TestAReplayIsBoundedByItsLease(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(payoutDeadLetter(5))
		begin := time.Now()
		o.report(0, "replay", payoutDeadLetter(5).ID, "--why", "x")
		require.WithinRange(t, o.payouts.until, begin.Add(10*time.Second), time.Now().Add(13*time.Second))
	})
}

func TestFailuresThatAreNotConsecutiveDoNotEndAReplay(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		for n := range 2 * maxPreviewFailures {
			o.put(payoutDeadLetter(n))
			if n%2 == 0 {
				o.payouts.broken[fmt.Sprint("P:", n)] = errors.New("connection lost")
			}
		}
		r := o.report(app.ExitBad, "replay", "--all", "--why", "x")
		require.Equal(t, []int{2 * maxPreviewFailures, maxPreviewFailures, maxPreviewFailures}, []int{r.Selected, r.Replayed, r.Failed})
	})
}

// A record without payload deletes its key on a compacted topic; an empty payload does not.
func TestAReplayedTombstoneIsATombstone(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		for n, payload := range [][]byte{nil, {}} {
			l := order(n)
			l.Payload = payload
			o.put(l)
			o.report(0, "replay", l.ID, "--why", "x")
			require.Equal(t, payload == nil, o.topics.published["orders"][n].Payload == nil)
		}
	})
}

func TestAnUnavailableBrokerEndsAReplay(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		for n := range 9 {
			o.put(order(n))
		}
		o.topics.setDown(errors.New("no broker"))
		out, code := o.run("replay", "--all", "--why", "x")
		require.Equal(t, app.ExitBad, code)
		require.Contains(t, out, "3 consecutive dead letters failed, the last one with: no broker")
		require.Equal(t, 3, o.topics.called())
		o.topics.setDown(nil)
		require.Equal(t, 4, o.report(0, "replay", "--all", "--why", "x", "--limit", "4").Replayed)
		require.Equal(t, 5, o.report(0, "replay", "--all", "--why", "x").Replayed)
		require.Len(t, o.topics.payloads("orders"), 9)
	})
}

func TestDiscard(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1), order(2), payoutDeadLetter(5))
		require.Equal(t, 2, o.report(0, "discard", "--plugin", "orders", "--dry-run").Selected)
		require.Equal(t, 2, o.report(0, "discard", "--plugin", "orders", "--who", "ann", "--why", "a test's").Discarded)
		require.Equal(t, store.Discarded, o.state(order(1).ID))
		require.Equal(t, store.Open, o.state(payoutDeadLetter(5).ID))
		r := o.report(app.ExitBad, "replay", order(1).ID, "nothing", "--why", "x")
		require.Equal(t, 2, r.Skipped)
		require.Empty(t, o.topics.payloads("orders"))
		_, actions, err := o.store.Get(t.Context(), order(1).ID)
		require.NoError(t, err)
		require.Equal(t, "ann", actions[0].Who)
		require.Equal(t, "a test's", actions[0].Why)
	})
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	o := newOffice(t, "")
	out, code := o.run("list")
	require.Equal(t, app.ExitUsage, code)
	require.Contains(t, out, "dead letters are not stored: plugins.deadletter.store.dsn is not set")
	o.dsn = "sqlite:" + filepath.Join(t.TempDir(), "letters.db")
	for name, args := range map[string][]string{
		"select dead letters":                  {"replay", "--why", "x"},
		"select dead letters with":             {"discard", "an-id", "--all", "--why", "x"},
		"either ids":                           {"replay", "an-id", "--class", "x", "--why", "x"},
		"--why REASON required":                {"replay", "--all", "--who", "ann"},
		"--why REASON":                         {"discard", "an-id", "--why", "  ", "--who", "ann"},
		"--who NAME and --why REASON required": {"discard", "an-id", "--who", ""},
		"--who NAME required":                  {"prune", "--older-than", "2h", "--why", "old", "--who", " "},
		"--rate must be":                       {"replay", "--all", "--why", "x", "--rate", "5/d"},
		"such as 5/s":                          {"replay", "--all", "--why", "x", "--rate", "-1/s"},
		"--limit must be":                      {"replay", "--all", "--why", "x", "--limit", "-1"},
		"--limit must be > 0":                  {"list", "--limit", "0"},
		"--since must be a time":               {"list", "--since", "yesterday"},
		"--until must be a time":               {"discard", "--until", "2026", "--why", "x"},
		"--state must be":                      {"list", "--state", "dead"},
	} {
		out, code := o.run(args...)
		require.Equal(t, app.ExitUsage, code, "%v: %s", args, out)
		require.Contains(t, out, name)
	}
}

func TestTheRateIsAnUpperBound(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		for n := range 4 {
			o.put(order(n))
		}
		begin := time.Now()
		require.Equal(t, 4, o.report(0, "replay", "--all", "--why", "x", "--rate", "10/s").Replayed)
		require.GreaterOrEqual(t, time.Since(begin), 300*time.Millisecond)
	})
}
