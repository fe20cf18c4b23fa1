package e2e

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// fillLedger makes promotions with one payout each, whose next attempt is two hours away, and a dead letter of each.
const fillLedger = `
INSERT INTO promotions (type, promotion_id, state, created_at, changed_at)
	SELECT 'VOUCHER', i, 'RUNNING', now(), now() FROM generate_series(1, 10000) AS i;
INSERT INTO promotion_streams (type, promotion_id, active) SELECT 'VOUCHER', i, FALSE FROM generate_series(1, 10000) AS i;
INSERT INTO payouts (type, promotion_id, target_id, summary_id, state, hint, hint_due, next_attempt_at, version, accepted_at, payload)
	SELECT 'VOUCHER', i, 1, i, 'ERROR', 'retry', now() + interval '2 hours', now() + interval '2 hours', 1, now(), '{}'
	FROM generate_series(1, 10000) AS i;
INSERT INTO outbox (kind, type, promotion_id, target_id, class, error, payload, headers, origin, handler, attempts, created_at, published_at)
	SELECT 'dead', 'VOUCHER', i, 2, 'invalid', 'refused', '{}', '{}', '', 'promotion', 1, now(), now() FROM generate_series(1, 10000) AS i;
ANALYZE promotions, promotion_streams, payouts, outbox;`

// With 10,000 unfinished promotions of which nothing is due, an instance is ready, it sends as few
// statements and commands as with an empty ledger, the probes send none, and a list reads what it
// shows. A payout that becomes due is found.
func TestTenThousandUnfinishedPromotionsCostAlmostNothing(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Promotion)
	w := onServers(t, servers.Redis, simulator.Faults{}).patient()
	dsn := w.settings["plugins.promotion.ledger.dsn"].(string)
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	_, err = conn.Exec(t.Context(), fillLedger)
	require.NoError(t, err)

	// The statistics of a session are complete when it has ended, and no instance runs yet.
	rowsRead := func() (n int64) {
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT sum(seq_tup_read + idx_tup_fetch + coalesce((SELECT sum(idx_tup_read)
			FROM pg_stat_user_indexes AS i WHERE i.relid = t.relid), 0)) FROM pg_stat_user_tables AS t WHERE schemaname = current_schema`).Scan(&n))
		return n
	}
	const shown = 20
	var before int64
	for _, list := range [][]string{{"campaign", "list", "--limit", "20"}, {"unknown", "list"}} {
		before = rowsRead()
		w.mustCommand(nil, list...)
		require.Eventually(t, func() bool { return rowsRead() > before }, 2*time.Minute, 100*time.Millisecond, "%v is in the statistics", list)
		t.Logf("%v read %d rows and index entries", list, rowsRead()-before)
		require.LessOrEqual(t, rowsRead()-before, int64(50*shown), "%v reads what it shows", list)
	}

	proxy := countStatements(t, dsn)
	address := unusedAddress(t)
	w.set("plugins.promotion.ledger.dsn", proxy.dsn).set("plugins.telemetry.listen", address)
	w.set("plugins.promotion.feeder.interval", "1s").set("plugins.promotion.feeder.grace_period", "30s")
	w.set("plugins.promotion.feeder.sweep_interval", "1h") // it searches all keys, as the console does
	w.set("plugins.promotion.stream.idle_timeout", "3s")
	pages := unusedAddress(t)
	w.set("plugins.console.enabled", true).set("plugins.console.listen", pages)
	w.start()
	get := func(path string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0
		}
		defer func() { _ = resp.Body.Close() }()
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		return resp.StatusCode
	}
	require.Eventually(t, func() bool { return get("/readyz") == http.StatusOK }, 2*time.Minute, 100*time.Millisecond, "ready")
	w.publish("POINT", 20)
	w.awaitSettled("POINT", 20, time.Minute)
	require.Eventually(t, func() bool { return len(w.keys("POINT")) == 0 }, 2*time.Minute, 100*time.Millisecond, "no stream is read")
	commands := func() int64 { return w.redisInfo("stats", "total_commands_processed:") }

	// What an idle instance costs, without and with 500 probes.
	const window = 15 * time.Second
	idle := func(during func()) (statements, redisCommands, most int64) {
		began, s, c := time.Now(), proxy.statements.Load(), commands()
		during()
		pause(t, window)
		seconds := int64(time.Since(began)/time.Second) + 1
		return proxy.statements.Load() - s, commands() - c, seconds * 20
	}
	statements, redisCommands, most := idle(func() {})
	t.Logf("idle: %d statements and %d commands of Redis in %s", statements, redisCommands, window)
	require.LessOrEqual(t, statements, most, "20 statements a second")
	require.Positive(t, statements)
	require.LessOrEqual(t, redisCommands, most, "20 commands of Redis a second")
	probed, probedCommands, most := idle(func() {
		for range 500 {
			require.NotZero(t, get("/readyz")) // it may say that the last measurement is too old, while the machine stands still
			require.Equal(t, http.StatusOK, get("/metrics"))
		}
	})
	t.Logf("idle with 1,000 probes: %d statements and %d commands of Redis", probed, probedCommands)
	require.LessOrEqual(t, probed, most, "a probe makes no statement")
	require.Eventually(t, func() bool { return get("/readyz") == http.StatusOK }, 2*time.Minute, 100*time.Millisecond, "ready")
	consoleCosts(t, w, proxy.statements.Load, "http://"+address+"/metrics", pages)

	_, err = conn.Exec(t.Context(), `UPDATE payouts SET hint_due = now() - interval '31 seconds', next_attempt_at = now() WHERE type = 'VOUCHER' AND promotion_id = 7`)
	require.NoError(t, err)
	require.Eventually(t, func() (fed bool) {
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT version > 1 FROM payouts WHERE type = 'VOUCHER' AND promotion_id = 7`).Scan(&fed))
		return fed
	}, 2*time.Minute, 10*time.Millisecond, "the feeder finds the promotion that has work")
}

// statementProxy counts the statements that pass to a PostgreSQL.
type statementProxy struct {
	dsn        string // of the server, through the proxy
	statements atomic.Int64
}

func countStatements(t *testing.T, dsn string) *statementProxy {
	t.Helper()
	to, err := url.Parse(dsn)
	require.NoError(t, err)
	server := to.Host
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	to.Host = l.Addr().String()
	p := &statementProxy{dsn: to.String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			back, err := new(net.Dialer).DialContext(context.Background(), "tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(client, back)
				_ = client.Close()
			}()
			go func() {
				_ = p.forward(back, bufio.NewReader(client))
				_ = back.Close()
			}()
		}
	}()
	return p
}

// forward copies the messages of a client. The first one has no type; a later one that executes a statement is a
// Query or an Execute.
func (p *statementProxy) forward(server io.Writer, client *bufio.Reader) error {
	for typed := 0; ; typed = 1 {
		head, err := client.Peek(typed + 4)
		if err != nil {
			return err
		}
		if typed == 1 && (head[0] == 'Q' || head[0] == 'E') {
			p.statements.Add(1)
		}
		size := int64(typed) + int64(uint32(head[typed])<<24|uint32(head[typed+1])<<16|uint32(head[typed+2])<<8|uint32(head[typed+3]))
		if _, err := io.CopyN(server, client, size); err != nil {
			return err
		}
	}
}
