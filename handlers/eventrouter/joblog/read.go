package joblog

import (
	"context"
	"fmt"
	"strconv"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Query selects a page of a job's log.
type Query struct {
	Domain, JobID string
	After         int64 // the page has greater numbers only
	Limit         int   // maximum number of events in the page
}

// Snapshot is the state of a job and a page of its log, at one moment.
type Snapshot struct {
	Found bool         // there is a state or a log
	State *event.Event // the event with the highest number; nil when there is none
	Top   int64        // the highest number; 0 when Found is false
	// First is the lowest number that may be in the log. After the log has expired it is Top + 1.
	First  int64
	End    int64         // the number of the event that ended the job; 0 before
	Events []event.Event // in the order of their numbers; the last page ends with Top
	Err    error         // the other fields are zero
}

// Read returns one snapshot per query, from one pipeline. A text that is no event counts as
// missing.
func (l *Log) Read(ctx context.Context, queries []Query) []Snapshot {
	if len(queries) == 0 {
		return nil
	}
	calls := make([]*redis.Call, len(queries))
	for i, q := range queries {
		calls[i] = l.read.Call([]string{LogKey(q.Domain, q.JobID), StateKey(q.Domain, q.JobID)}, q.After, q.Limit)
	}
	_ = l.server.Do(ctx, calls...) // each call has its error
	snapshots := make([]Snapshot, len(queries))
	for i, call := range calls {
		s, err := l.snapshot(call)
		if err != nil {
			s = Snapshot{Err: fmt.Errorf("read the log of job %s: %w", queries[i].JobID, err)}
		}
		snapshots[i] = s
	}
	return snapshots
}

func (l *Log) snapshot(call *redis.Call) (Snapshot, error) {
	reply, err := call.Texts()
	if err != nil {
		return Snapshot{}, err
	}
	if len(reply) < 4 {
		return Snapshot{}, fmt.Errorf("unexpected reply with %d values", len(reply))
	}
	var s Snapshot
	for i, number := range []*int64{&s.Top, &s.First, &s.End} {
		if *number, err = strconv.ParseInt(reply[1+i], 10, 64); err != nil {
			return Snapshot{}, err
		}
	}
	s.Found = s.Top > 0
	for _, text := range reply[4:] {
		if e, err := event.Decode([]byte(text)); err == nil {
			s.Events = append(s.Events, e)
		}
	}
	state, err := event.Decode([]byte(reply[0]))
	if err != nil {
		return s, nil //nolint:nilerr // as if there were no state
	}
	if s.State = &state; !s.Found { // the log has expired
		s.Found, s.Top, s.First = true, state.Seq, state.Seq+1
		if l.stages.IsTerminal(state.Stage) {
			s.End = s.Top
		}
	}
	return s, nil
}
