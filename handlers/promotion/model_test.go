package promotion

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/handlers/promotion/feeder"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/streams"
)

// TestRandomHistories plays random histories of one small promotion on two instances. It checks at
// every step:
//
//   - no payout is in flight twice;
//   - no payout is started while the promotion is paused, and none is sent when it is cancelled;
//   - an idle stop deletes no unread entry;
//   - no key is charged twice.
//
// After the repair at the end, every payout is settled, and the ledger agrees with the charges.
//
// The code is the real one: the processor, its sink, the feeder and the stream manager. The ledger
// runs on a real database, and the scripts on a real Redis. Each part is an actor that waits before
// every step that other actors can see. The history selects the next actor, crashes, lost commands
// and answers, answers of the Money API, wiped streams and frozen transactions. rapid makes a
// failing history shorter. Time passes by moving the time stamps in the database.
//
// MILLRACE_HISTORIES is the number of histories, over all environments and in hundreds per worker.
// `make histories` plays 10,000 on the real servers and as many embedded.
//
// Each of these defects, made on purpose, failed the test within 100 histories:
//
//   - a settle that doesn't compare the epoch, and a begin that ignores a live lease;
//   - an expired lease that does not count as a possible charge;
//   - a send after idempotency_ttl, or a key whose age counts from the latest refusal;
//   - a proxy's refusal that counts as the API's own;
//   - a clean-up script that does not check whether the stream is drained;
//   - a conflict that is answered with Done;
//   - a feeder that does not record the loss of a stream, or its incarnation;
//   - a feeder that leaves out overdue retries;
//   - a begin that ignores a pause, or sends for a cancelled promotion.
func TestRandomHistories(t *testing.T) {
	if tier.IsRest(t) {
		tier.Rest(t) // more of them
	}
	t.Parallel()
	total, workers := 200, 2
	if s := os.Getenv("MILLRACE_HISTORIES"); s != "" {
		var err error
		total, err = strconv.Atoi(s)
		require.NoError(t, err, "MILLRACE_HISTORIES")
		workers = 4 // two per environment: a history mostly waits for its database
	}
	kinds := []func(testing.TB) *modelEnv{embeddedModelEnv, realModelEnv}
	for worker := range workers {
		t.Run(fmt.Sprint(worker), func(t *testing.T) {
			t.Parallel()
			h := kinds[worker%2](t)
			// rapid.Check plays a hundred; the flag is the whole binary's.
			for left := (total + workers - 1) / workers; left > 0; left -= h.played() {
				rapid.Check(t, h.play)
			}
			t.Logf("%s: %d histories, %d steps", h.name, h.histories, h.steps)
		})
	}
}

// modelEnv is what the histories of one worker share: servers, connections, and the ledgers of two
// instances.
type modelEnv struct {
	name          string
	kind          streams.Kind
	ledgers       [2]*ledger.Ledger
	clients       [2]goredis.UniversalClient
	watch         goredis.UniversalClient // the history's own client
	db            *sql.DB
	shift         [2]string
	dsn           string
	config        Config
	payoutMetrics *payout.Metrics
	feederMetrics *feeder.Metrics
	mayFreeze     int // 1: on PostgreSQL. A transaction of SQLite excludes every other
	next          int64
	last          int
	histories     int
	steps         int
}

// played returns the number of histories since its last call, at least one.
func (h *modelEnv) played() int {
	n := h.histories - h.last
	h.last = h.histories
	return max(n, 1)
}

var modelEnvs atomic.Int64

func embeddedModelEnv(t testing.TB) *modelEnv {
	mini := miniredis.NewMiniRedis()
	require.NoError(t, mini.Start())
	t.Cleanup(mini.Close)
	path := filepath.Join(t.TempDir(), "ledger.db")
	return newModelEnv(t, &modelEnv{name: "miniredis and SQLite", dsn: "sqlite:" + path}, mini.Addr(), 0, "sqlite",
		path+"?_busy_timeout=10000&_synchronous=off", `%[1]s = %[1]s - $1 * 1000000`)
}

func realModelEnv(t testing.TB) *modelEnv {
	addr := tier.Address(t, "redis")
	dsn := sqldbtest.Schema(t)
	// A power failure is not part of the histories; the disk would only slow them down.
	dsn += "&synchronous_commit=off&lock_timeout=50"
	h := newModelEnv(t, &modelEnv{name: "Redis and PostgreSQL", dsn: dsn, mayFreeze: 1}, addr, redistest.Server{Addr: addr}.Database(t), "pgx",
		dsn, `%[1]s = %[1]s - make_interval(secs => $1)`)
	// To shorten a table, autovacuum locks it also against readers. On a slow machine that takes
	// longer than lock_timeout.
	_, err := h.db.ExecContext(t.Context(), `DO $$ DECLARE name text; BEGIN
		FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema() LOOP
			EXECUTE format('ALTER TABLE %I SET (vacuum_truncate = off)', name);
		END LOOP; END $$`)
	require.NoError(t, err)
	return h
}

func newModelEnv(t testing.TB, h *modelEnv, redisAddr string, redisDB int, driver, source, shift string) *modelEnv {
	prefix := fmt.Sprintf("millrace-model-%d-%d", os.Getpid(), modelEnvs.Add(1))
	h.kind = streams.Kind{Type: "POINT", StreamPrefix: prefix + ":POINT:", GroupPrefix: prefix + "-group:POINT:"}
	h.payoutMetrics, h.feederMetrics = payout.NewMetrics(), feeder.NewMetrics()
	h.config = DefaultConfig()
	h.config.Stream.MaxLen, h.config.Stream.IdleTimeout = 2, time.Nanosecond
	h.config.Feeder = feeder.Config{Interval: 10 * time.Minute, GracePeriod: modelGrace, SweepInterval: time.Hour, BatchSize: 2}
	h.config.Ledger.DSN = setting.NewSecret(h.dsn)
	h.config.Ledger.Connections, h.config.Ledger.MaxRetries = 4, 2
	h.config.Ledger.IdempotencyTTL, h.config.Ledger.MaxReleased = modelTTL, 2
	h.config.Ledger.Retry = pipeline.Backoff{First: 10 * time.Minute, Max: 30 * time.Minute}
	var err error
	for i := range h.ledgers {
		h.ledgers[i], err = ledger.Open(t.Context(), h.config.Ledger, ledger.Options{Instance: string(rune('a' + i)), Lease: modelLease}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.ledgers[i].Close()) })
		require.NoError(t, h.ledgers[i].Migrate(t.Context()))
	}
	dial := func() goredis.UniversalClient {
		c := redis.DefaultClientConfig()
		c.Addrs, c.DB = []string{redisAddr}, redisDB
		// A slow machine is no finding.
		c.ReadTimeout, c.DialTimeout = 30*time.Second, 30*time.Second
		client, err := redis.NewClient(c, nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	h.clients, h.watch = [2]goredis.UniversalClient{dial(), dial()}, dial()
	h.db, err = sql.Open(driver, source)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.db.Close()) })
	columns := func(names ...string) string {
		for i, n := range names {
			names[i] = fmt.Sprintf(shift, n)
		}
		return strings.Join(names, ", ")
	}
	h.shift = [2]string{
		"UPDATE payouts SET " + columns("hint_due", "lease_until", "next_attempt_at", "first_sent_at", "key_first_used_at", "attempt_started_at") + " WHERE type = 'POINT' AND promotion_id = $2",
		"UPDATE promotion_streams SET " + columns("feeder_until", "waiting_since") + " WHERE type = 'POINT' AND promotion_id = $2",
	}
	// Scripts are loaded before, so that each call is one step.
	hist := h.newHistory()
	require.NoError(t, hist.ins[0].manager.Ensure(t.Context(), hist.promotion.StreamID()))
	_, _, err = hist.ins[0].manager.EnqueueBatch(t.Context(), hist.promotion.StreamID(), []entry.Entry{{Message: []byte("warm up")}})
	require.NoError(t, err)
	_, err = hist.ins[0].manager.Inspect(t.Context(), hist.promotion.StreamID())
	require.NoError(t, err)
	hist.ins[0].manager.Decommission(t.Context(), hist.promotion.StreamID())
	require.NoError(t, h.watch.Del(t.Context(), hist.stream, streams.MetaKey(hist.stream)).Err())
	require.NoError(t, h.ledgers[0].Deactivate(t.Context(), hist.promotion))
	for _, c := range h.clients {
		c.AddHook(stepHook{})
	}
	return h
}

// byOperator pauses, resumes and cancels promotions in tests.
var byOperator = ledger.Steering{Who: "ann", Why: "a test", Future: true}

const (
	stateRunning = iota
	statePaused
	stateCancelled
)

// offer is a record of the publish topic. It is there until it is acked, and may come again after
// that.
type offer struct {
	target, amount int64
	payload        []byte
	acked, busy    bool
}

// retryRecord is a record of the retry topic.
type retryRecord struct {
	payload     []byte
	due         time.Duration
	acked, busy bool
}

// history is one history.
type history struct {
	*modelEnv
	promotion     payouts.Promotion
	stream, group string
	ins           [2]*modelInstance
	flag          bool // plugins.promotion.stream.enabled
	state         int
	now           time.Duration

	offers  []*offer
	retries []*retryRecord
	charges map[string][]modelCharge
	keys    map[string]*keyMemory
	bodies  map[string]string
	calls   map[string]map[*modelCall]bool
	network []request
	answers []int // of the Money API while everything heals

	frozenTx  *sql.Tx         // the transaction of a frozen instance
	wasFrozen bool            // there was one
	seen      map[string]bool // incarnations that are recorded, or that a feeder's round has met
	unseen    bool            // a stream was wiped that is not among them
	// deactivations counts how often the promotion was taken off the active set.
	deactivations int

	faults []string // what was found wrong
	log    []string
}

func (h *modelEnv) newHistory() *history {
	h.next++
	hist := &history{modelEnv: h, promotion: payouts.Promotion{Type: "POINT", ID: h.next}, flag: true,
		charges: map[string][]modelCharge{}, keys: map[string]*keyMemory{}, bodies: map[string]string{}, calls: map[string]map[*modelCall]bool{}, seen: map[string]bool{}}
	hist.stream, hist.group = h.kind.Stream(hist.promotion.StreamID()), h.kind.Group(hist.promotion.StreamID())
	for i := range hist.ins {
		config := h.config
		hist.ins[i] = &modelInstance{name: string(rune('a' + i)), ledger: h.ledgers[i], client: h.clients[i], config: &config}
		hist.ins[i].restart(hist)
	}
	return hist
}

func (hist *history) logf(format string, args ...any) {
	hist.log = append(hist.log, fmt.Sprintf("%3d %6s ", len(hist.log), hist.now)+fmt.Sprintf(format, args...))
}

func (hist *history) violation(format string, args ...any) {
	hist.faults = append(hist.faults, fmt.Sprintf(format, args...))
}

// check ends the history when something is wrong.
func (hist *history) check(t *rapid.T) {
	if len(hist.faults) > 0 {
		t.Fatalf("%s\n\n%s", strings.Join(hist.faults, "\n"), strings.Join(hist.log, "\n"))
	}
}

// must is for what has no reason to fail.
func (hist *history) must(err error) {
	if err != nil {
		hist.violation("%v", err)
	}
}

// play is one history: random steps, the repair, and the comparison.
func (h *modelEnv) play(t *rapid.T) {
	h.histories++
	hist := h.newHistory()
	defer func() { // a failed or refused history leaves nothing behind
		hist.thaw()
		for _, in := range hist.ins {
			for len(in.actors) > 0 {
				hist.step(in.actors[0], move{crash: true})
			}
		}
		ctx := context.Background()
		_ = hist.watch.Del(ctx, hist.stream, streams.MetaKey(hist.stream)).Err()
		_ = hist.ledgers[0].Deactivate(ctx, hist.promotion)
	}()
	if rapid.Bool().Draw(t, "roomy") { // no overflow, in which the feeder would record the stream
		for _, in := range hist.ins {
			in.config.Stream.MaxLen = 100
		}
	}
	for range rapid.IntRange(1, 3).Draw(t, "targets") {
		hist.offer(int64(1+len(hist.offers)), 500)
	}
	// Half of the histories start with payouts in the stream and readers.
	if rapid.Bool().Draw(t, "under way") {
		for _, rec := range hist.offers {
			hist.run(hist.ins[0], hist.accept(hist.ins[0], rec))
		}
		hist.reconcile(hist.ins[0])
		hist.reconcile(hist.ins[1])
	}
	for _, d := range rapid.SliceOfN(rapid.Custom(newDraw), 30, 90).Draw(t, "steps") {
		h.steps++
		hist.takeStep(d)
		hist.check(t)
	}
	hist.answers = rapid.SliceOfN(rapid.SampledFrom([]int{answerPaid, answerLost, answerBroken, answerRejected, answerTryAgain, answerThrottled, answerMisconfigured,
		answerProxy, answerProxyCharged, answerOverloaded}), 0, 4).Draw(t, "answers at the end")
	hist.settleEverything(t, rapid.Bool().Draw(t, "late requests are carried out"))
}

func pointType() promotiontype.Type {
	t, _ := promotiontype.ByName("POINT")
	return t
}

func (hist *history) offer(target, amount int64) {
	payload, err := pointType().Encode(hist.promotion.ID, 9, target, strconv.FormatInt(amount, 10))
	hist.must(err)
	hist.offers = append(hist.offers, &offer{target: target, amount: amount, payload: payload})
}

// record returns the record of a payout that is not offered.
func (hist *history) record(t testing.TB, target int64) payouts.Record {
	payload, err := pointType().Encode(hist.promotion.ID, 9, target, "500")
	require.NoError(t, err)
	return payouts.Record{Key: payouts.Key{Type: "POINT", Promotion: hist.promotion.ID, Target: target}, SummaryID: 9, Payload: payload}
}

// pass lets time pass.
func (hist *history) pass(d time.Duration) {
	hist.thaw() // no session stays so long in a transaction
	hist.logf("%s pass", d)
	hist.now += d
	for _, sql := range hist.shift {
		_, err := hist.db.Exec(sql, int64(d/time.Second), hist.promotion.ID)
		hist.must(err)
	}
	for i := len(hist.network) - 1; i >= 0; i-- {
		if hist.network[i].until < hist.now {
			hist.arrive(i, false)
		}
	}
}

// command is an operator's: pause, resume or cancel.
func (hist *history) command(cancel bool) {
	l, ctx := hist.ledgers[0], context.Background()
	switch {
	case hist.state == stateCancelled:
		if err := l.Pause(ctx, hist.promotion, byOperator); !errors.Is(err, ledger.ErrCancelled) {
			hist.violation("pause after cancel: %v", err)
		}
	case cancel:
		_, err := l.Cancel(ctx, hist.promotion, byOperator)
		hist.must(err)
		hist.state = stateCancelled
	case hist.state == statePaused:
		hist.must(l.Resume(ctx, hist.promotion, byOperator))
		hist.state = stateRunning
	default:
		hist.must(l.Pause(ctx, hist.promotion, byOperator))
		hist.state = statePaused
	}
	hist.logf("an operator's command: now %d", hist.state)
}
