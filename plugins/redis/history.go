package redis

import (
	"context"
	_ "embed" // the script
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

var _ operate.HistoryReader = (*Plugin)(nil)

//go:embed lua/work.lua
var workSource string

// historyKey has what all instances did, by step of time. It stays when they end, so that a rolling restart does not
// look like a pause.
const historyKey = "millrace:work"

// historyFields is the number of steps that are kept: those that are shown, the one that is not over, and some for
// clocks that differ.
const historyFields = operate.HistorySteps + 4

// history tells what this instance did. The zero value is ready. It is safe for concurrent use.
type history struct {
	mu   sync.Mutex
	told map[string]operate.Handled // by route, since the process started
}

// tell adds what was done since the last call. What could not be told is left out of the history: it may have arrived,
// and would stand in the wrong step later.
func (h *history) tell(ctx context.Context, c goredis.Scripter, work map[string]pipeline.RouteWork) error {
	args := []any{int64(operate.HistoryStep / time.Second), historyFields}
	h.mu.Lock()
	if h.told == nil {
		h.told = map[string]operate.Handled{}
	}
	for route, one := range work {
		now, before := operate.Handled{Done: one.Done, Failed: one.Failed}, h.told[route]
		if now != before {
			args = append(args, route, now.Done-before.Done, now.Failed-before.Failed)
			h.told[route] = now
		}
	}
	h.mu.Unlock()
	if err := goredis.NewScript(workSource).Run(ctx, c, []string{historyKey}, args...).Err(); err != nil {
		return fmt.Errorf("redis: what this instance did: %w", err)
	}
	return nil
}

// tellWork tells what this instance did since it was called last.
func (p *Plugin) tellWork(ctx context.Context, c goredis.Scripter, log *slog.Logger) {
	work := p.work()
	if work == nil {
		return // it has no routes
	}
	if err := p.history.tell(ctx, c, work); err != nil {
		log.DebugContext(ctx, "what this instance did in the last seconds is missing in the charts", logs.Err(err))
	}
}

// ReadHistory implements operate.HistoryReader.
func (p *Plugin) ReadHistory(ctx context.Context) (map[int64]map[string]operate.Handled, error) {
	c, done, err := p.connected(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	fields, err := c.HGetAll(ctx, historyKey).Result()
	if err != nil {
		return nil, answered(fmt.Errorf("redis: what instances did: %w", err))
	}
	all := map[int64]map[string]operate.Handled{}
	for field, text := range fields {
		var one struct {
			Step   int64                `json:"step"`
			Routes map[string][2]uint64 `json:"routes"`
		}
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			return nil, fmt.Errorf("redis: what instances did, field %s of %s: %w", field, historyKey, err)
		}
		all[one.Step] = map[string]operate.Handled{}
		for route, n := range one.Routes {
			all[one.Step][route] = operate.Handled{Done: n[0], Failed: n[1]}
		}
	}
	return all, nil
}
