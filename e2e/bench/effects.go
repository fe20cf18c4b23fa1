package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/pipeline/httpserver"
)

// effectRows are the effects in the words of the campaigns. An effect that was done by its first call has
// no count of attempts.
const effectRows = `(SELECT CASE state WHEN 5 THEN 'SUCCESS' END AS state, coalesce(attempts, 1) AS attempts, accepted_at, settled_at FROM once_effects) AS effects`

// kindSettings are those of a kind of effects without Go: it calls for each of the same records, with as many calls at once as the bare loop.
func (r *run) kindSettings() map[string]any {
	const kind = "plugins.effects.kinds.payout."
	return map[string]any{
		"plugins.promotion.enabled":         false,
		"plugins.once.ledger.dsn":           r.dsn,
		kind + "repeat":                     "by_key",
		kind + "group":                      "promotionId",
		kind + "key":                        "targetId",
		kind + "request.path":               point().Operation.Path,
		kind + "request.idempotency_header": "Idempotency-Key",
		kind + "answers.receipt":            "transactionKey",
		kind + "api.url":                    r.url,
		kind + "effects.concurrency":        bareReaders * bareCalls,
		kind + "effects.topic":              publishTopic,
		kind + "effects.key_ttl":            "24h",
		kind + "effects.max_retries":        3,
	}
}

func (e *environment) settledEffects(ctx context.Context) int {
	return e.count(ctx, `SELECT (SELECT coalesce(sum(done + failed + unknown + cancelled), 0) FROM once_totals WHERE grp = '')::bigint
		+ (SELECT coalesce(sum(done + failed + unknown + cancelled), 0) FROM once_deltas)::bigint`)
}

// compareEffects measures effects from the record in Kafka to the end in the ledger.
func compareEffects(ctx context.Context, t *trial) {
	r := t.campaigns(ctx,
		campaign{label: bareLoopPeer, targets: t.campaign, effects: true, peer: "bare"},
		campaign{label: "one instance", targets: t.campaign, effects: true},
		campaign{label: "a group per effect", targets: t.campaign, effects: true, settings: map[string]any{"plugins.effects.kinds.payout.group": "targetId"}},
		campaign{label: "three instances", targets: t.campaign, effects: true, joined: true, instances: 3},
		campaign{label: "three instances, via streams", targets: t.campaign, effects: true, joined: true, instances: 3, settings: map[string]any{"plugins.effects.kinds.payout.effects.via": "streams"}})
	bare, one, groups, three, streams := r[0], r[1], r[2], r[3], r[4]
	t.figure("effects-rate", one.Rate, bare.Rate)
	t.figure("effects-cpu", one.micros("own"), bare.micros("own"))
	t.figure("effects-postgres", one.micros(servers.Postgres), bare.micros(servers.Postgres))
	t.figure("effects-groups", groups.micros("own"), one.micros("own"))
	t.figure("effects-three", three.micros("own"), one.micros("own"))
	t.figure("effects-streams", streams.micros("own"), three.micros("own"))
	t.figure("effects-streams-postgres", streams.micros(servers.Postgres), three.micros(servers.Postgres))
}

// farSide is an API that executes a request once per idempotency key, and counts. It prints its address. settings may
// limit the requests per second, and the ones above are refused.
func farSide(ctx context.Context, settings string, out io.Writer) error {
	f := &far{executed: map[string]int{}}
	if err := json.Unmarshal([]byte(settings), &f.budget); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server, limited := httpserver.Tool(listener, f, slog.New(slog.DiscardHandler))
	fmt.Fprintf(out, "{\"url\":\"http://%s\"}\n", listener.Addr())
	served := make(chan error, 1)
	go func() { served <- server.Serve(limited) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		err = errors.Join(server.Close(), <-served)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// far is the handler of farSide.
type far struct {
	mu       sync.Mutex
	executed map[string]int // requests by key
	calls    ticks          // that were executed
	budget   budget
	refused  int
}

func (f *far) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path == callsPath:
		_ = json.NewEncoder(w).Encode(f.calls.all())
		return
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(f.count())
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	key := r.Header.Get("Idempotency-Key")
	f.mu.Lock()
	allowed := f.budget.allows(time.Now())
	if allowed {
		f.executed[key]++
	} else {
		f.refused++
	}
	f.mu.Unlock()
	if !allowed {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		fmt.Fprint(w, `{"code":"too_many"}`)
		return
	}
	f.calls.note()
	fmt.Fprintf(w, `{"transactionKey":%q}`, "done-"+key)
}

// count returns the counts in the words of a simulator. A request that was repeated counts as double,
// because nothing here is a reason to repeat one.
func (f *far) count() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[string]int{"executed": len(f.executed), "executions": 0, "doubled": 0, "refused": f.refused}
	for _, n := range f.executed {
		counts["executions"] += n
		if n > 1 {
			counts["doubled"]++
		}
	}
	return counts
}
