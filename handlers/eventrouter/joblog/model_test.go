package joblog_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// model is one job as the rules describe it, without keys and scripts.
type model struct {
	max   int
	log   map[int64]event.Event // nil: there is no log
	first int64
	end   int64
	state *event.Event
}

func (m *model) top() int64 { return slices.Max(slices.Collect(maps.Keys(m.log))) }

// append is one call of the script.
func (m *model) append(events []event.Event, old []bool) (answers []joblog.Answer) {
	shown := func(o joblog.Outcome, e event.Event) joblog.Answer {
		text, err := e.JSON()
		if err != nil {
			panic(err)
		}
		return joblog.Answer{Outcome: o, Text: string(text)}
	}
	changed := false
	for i, e := range events {
		known, has := m.log[e.Seq]
		first, end := m.first, m.end
		if m.log == nil && m.state != nil { // what the state remembers of a log that has expired
			first = m.state.Seq + 1
			if m.state.Stage == "done" {
				end = m.state.Seq
			}
		}
		switch {
		case end > 0 && e.Seq > end:
			answers = append(answers, joblog.Answer{Outcome: afterEnd})
		case has:
			outcome := duplicate
			if known.Stage != e.Stage || known.Status != e.Status || string(known.Data) != string(e.Data) {
				outcome = conflict
			}
			answers = append(answers, shown(outcome, known))
		case e.Seq < first && m.log != nil:
			answers = append(answers, shown(duplicate, e))
		case e.Seq < first, m.log == nil && m.state == nil && old[i]:
			answers = append(answers, joblog.Answer{Outcome: expired})
		default:
			if m.log == nil {
				m.log, m.first, m.end = map[int64]event.Event{}, first, end
			}
			m.log[e.Seq] = e
			if e.Stage == "done" && m.end == 0 {
				m.end = e.Seq
			}
			changed = true
			answers = append(answers, shown(added, e))
		}
		maps.DeleteFunc(m.log, func(n int64, _ event.Event) bool { return m.end > 0 && n > m.end })
	}
	if !changed {
		return answers
	}
	last := m.log[m.top()]
	m.state = &last
	numbers := slices.Sorted(maps.Keys(m.log))
	for len(numbers) > m.max {
		delete(m.log, numbers[0])
		m.first = numbers[0] + 1
		numbers = numbers[1:]
	}
	return answers
}

func (m *model) read(after int64, limit int) joblog.Snapshot {
	s := joblog.Snapshot{Found: m.log != nil || m.state != nil, State: m.state, First: 1}
	if m.log != nil {
		s.Top, s.First, s.End = m.top(), m.first, m.end
		for _, n := range slices.Sorted(maps.Keys(m.log)) {
			if n > after && len(s.Events) < limit {
				s.Events = append(s.Events, m.log[n])
			}
		}
	} else if m.state != nil {
		s.Top, s.First = m.state.Seq, m.state.Seq+1
		if m.state.Stage == "done" {
			s.End = m.state.Seq
		}
	}
	return s
}

// TestHistories compares the scripts with the model. Events come in any order and grouping, twice,
// with other content, and after the end. Logs and states expire in between.
func TestHistories(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Parallel()
		const longest = 5
		r, jobs := newRig(t, s, func(c *joblog.Config) { c.LogMax = longest }), 0
		rapid.Check(t, func(t *rapid.T) {
			jobs++
			ctx, job := context.Background(), fmt.Sprint("job-", jobs)
			m := &model{max: longest, first: 1}
			number := rapid.OneOf(rapid.Int64Range(1, 12), rapid.Int64Range(1, 1<<53-1))
			t.Repeat(map[string]func(*rapid.T){
				"append": func(t *rapid.T) {
					n := rapid.IntRange(1, 6).Draw(t, "events")
					events, old := make([]event.Event, n), make([]bool, n)
					for i := range events {
						stage := rapid.SampledFrom([]string{"step", "step", "step", "step", "done"}).Draw(t, "stage")
						old[i] = rapid.IntRange(0, 3).Draw(t, "old") == 0
						id := fmt.Sprint(time.Now().UnixMilli(), "-", i)
						if old[i] {
							id = fmt.Sprint("1-", i)
						}
						events[i] = event.Event{Domain: r.domain, JobID: job, Stage: stage, Seq: number.Draw(t, "seq"), StreamID: id}
					}
					want := m.append(events, old)
					result := r.log.Append(ctx, r.domain, [][]event.Event{events})[0]
					require.NoError(t, result.Err)
					require.Equal(t, want, result.Answers)
				},
				"the log expires": func(*rapid.T) {
					r.client.Del(ctx, joblog.LogKey(r.domain, job))
					m.log, m.first, m.end = nil, 1, 0
				},
				"the state expires": func(*rapid.T) {
					r.client.Del(ctx, joblog.StateKey(r.domain, job))
					m.state = nil
				},
				"": func(t *rapid.T) {
					after, limit := rapid.Int64Range(0, 12).Draw(t, "after"), rapid.IntRange(1, 7).Draw(t, "limit")
					for _, page := range []joblog.Query{{r.domain, job, after, limit}, {r.domain, job, 0, 100}} {
						got := r.log.Read(ctx, []joblog.Query{page})[0]
						require.Equal(t, m.read(page.After, page.Limit), got)
					}
				},
			})
		})
	})
}
