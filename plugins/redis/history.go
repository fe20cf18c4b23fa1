package redis

import (
	"context"
	_ "embed" // the scripts
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

var _ operate.HistoryReader = (*Plugin)(nil)

var (
	//go:embed lua/work.lua
	workSource string
	//go:embed lua/past.lua
	pastSource string
)

// historyKey has what all instances did, by step of time. It stays when they end, so that a rolling restart does not
// look like a pause.
const historyKey = "millrace:work"

// historyFields is the number of steps that are kept: those that are shown, the one that is not over, and some more,
// because the oldest one is read until the newest is over.
const historyFields = operate.HistorySteps + 4

// lastTold bounds the last call of tell of a process, which has more to do.
const lastTold = time.Second

// history tells what this instance did. The zero value is ready. It is safe for concurrent use.
type history struct {
	mu   sync.Mutex
	at   time.Time                  // of the last call of tell
	told map[string]operate.Handled // by route, since the process started
}

// begin says when the process began to handle messages.
func (h *history) begin(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at = now
}

// tell adds what was done since the last call, which read returns, as of all of the process. Some of it is left out of
// the history: what could not be told, because it may have arrived, and what was done while nothing could be told for
// longer than a step, because nobody knows in which one.
func (h *history) tell(ctx context.Context, c goredis.UniversalClient, now time.Time, read func() map[string]pipeline.RouteWork) error {
	args := []any{int64(operate.HistoryStep / time.Second), historyFields}
	h.mu.Lock()
	work := read() // with the mutex held, so that a later count is never the smaller one
	late := !h.at.IsZero() && now.Sub(h.at) > operate.HistoryStep
	if h.told == nil {
		h.told = map[string]operate.Handled{}
	}
	for route, one := range work {
		all, before := operate.Handled{Done: one.Done, Failed: one.Failed}, h.told[route]
		if h.told[route] = all; all != before && !late {
			args = append(args, route, all.Done-before.Done, all.Failed-before.Failed)
		}
	}
	h.at = now
	h.mu.Unlock()
	if len(work) == 0 || late {
		return nil // it does not say that nothing was handled
	}
	call := NewScript(workSource).Call([]string{historyKey}, args...).Once()
	if sendAll(ctx, c, []*Call{call}); call.Err() != nil {
		return fmt.Errorf("redis: what this instance did: %w", call.Err())
	}
	return nil
}

// tellWork tells what this instance did since it was called last.
func (p *Plugin) tellWork(ctx context.Context, c goredis.UniversalClient, log *slog.Logger) {
	if err := p.history.tell(ctx, c, time.Now(), p.work); err != nil {
		log.DebugContext(ctx, "what this instance did in the last seconds is missing in the charts", logs.Err(err))
	}
}

// ReadHistory implements operate.HistoryReader. A field that can't be read is none.
func (p *Plugin) ReadHistory(ctx context.Context) (steps map[int64]map[string]operate.Handled, now int64, err error) {
	c, done, err := p.connected(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	call := NewScript(pastSource).Call([]string{historyKey}, int64(operate.HistoryStep/time.Second))
	sendAll(ctx, c, []*Call{call})
	texts, err := call.Texts()
	if err == nil {
		now, err = strconv.ParseInt(texts[0], 10, 64)
	}
	if err != nil {
		return nil, 0, answered(fmt.Errorf("redis: what instances did: %w", err))
	}
	steps = map[int64]map[string]operate.Handled{}
	for _, text := range texts[1:] {
		var one struct {
			Step   int64                `json:"step"`
			Routes map[string][2]uint64 `json:"routes"`
		}
		if json.Unmarshal([]byte(text), &one) != nil {
			continue
		}
		if steps[one.Step] == nil {
			steps[one.Step] = map[string]operate.Handled{}
		}
		for route, n := range one.Routes {
			sum := steps[one.Step][route]
			steps[one.Step][route] = operate.Handled{Done: sum.Done + n[0], Failed: sum.Failed + n[1]}
		}
	}
	return steps, now, nil
}
