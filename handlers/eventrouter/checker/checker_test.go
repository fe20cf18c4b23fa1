package checker_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/checker"
	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/watch"
)

func of(seq int64, stage, status string) event.Event {
	return event.Event{Domain: "scan", JobID: "j", Seq: seq, Stage: stage, Status: status}
}

func numbered(seq int64, stage, status string) watch.Message {
	text, _ := of(seq, stage, status).JSON()
	return watch.Message{ID: strconv.FormatInt(seq, 10), Name: watch.NameEvent, Data: text}
}

func token(status string) watch.Message {
	text, _ := of(0, "token", status).JSON()
	return watch.Message{Name: watch.NameTransient, Data: text}
}

func gap(from, to int64) watch.Message {
	return watch.Message{ID: strconv.FormatInt(to, 10), Name: watch.NameGap, Data: fmt.Appendf(nil, `{"from":%d,"to":%d}`, from, to)}
}

// back is a gap that takes numbers back.
func back(from, to int64) watch.Message {
	m := gap(from, to)
	m.ID = strconv.FormatInt(from-1, 10) + ".1-1"
	return m
}

// entry returns an event with the id of a stream entry in its data.
func entry(m watch.Message, id string) watch.Message {
	m.Data = fmt.Appendf(nil, `{"stream_id":%q,%s`, id, m.Data[1:])
	return m
}

func closed(reason string) watch.Message {
	return watch.Message{Name: watch.NameClosed, Data: fmt.Appendf(nil, `{"reason":%q}`, reason)}
}

// The producer has left out number 4. Tokens are a and b. Each wrong stream has its problem.
func TestEachWrongStreamIsReported(t *testing.T) {
	t.Parallel()
	one, two, three, end := numbered(1, "scan", "x"), numbered(2, "scan", ""), numbered(3, "scan", ""), numbered(5, "done", "")
	otherID, gapped := two, end
	otherID.ID, gapped.ID = "7", "5~4"
	for name, tc := range map[string]struct {
		stream  []watch.Message
		problem string
		lost    int
	}{
		"complete":               {stream: []watch.Message{one, token("a"), two, three, token("b"), end, closed("done")}},
		"a shown hole":           {stream: []watch.Message{one, two, three, gap(4, 4), end, closed("done")}},
		"its gap in the id":      {stream: []watch.Message{one, two, three, gap(4, 4), gapped, closed("done")}},
		"a lost token":           {stream: []watch.Message{one, two, token("b"), three, end, closed("done")}},
		"several connections":    {stream: []watch.Message{one, two, closed("draining"), three, end, closed("done")}},
		"missing":                {stream: []watch.Message{one, three, end, closed("done")}, problem: "event 2 is missing, and no gap says so"},
		"missing and shown":      {stream: []watch.Message{one, gap(2, 2), three, end, closed("done")}, lost: 1},
		"twice":                  {stream: []watch.Message{one, two, two, three, end, closed("done")}, problem: "event 2 after event 2"},
		"out of order":           {stream: []watch.Message{two, one, three, end, closed("done")}, problem: "event 1 after event 2"},
		"no end":                 {stream: []watch.Message{one, two, three, end}, problem: "the stream did not end"},
		"no last event":          {stream: []watch.Message{one, two, three, closed("done")}, problem: `the last event before closed "done" is 3`},
		"another end":            {stream: []watch.Message{one, two, three, end, closed("error")}, problem: `the last event before closed "error" is 5`},
		"after the end":          {stream: []watch.Message{one, two, three, end, closed("done"), numbered(6, "scan", "")}, problem: "event after the end"},
		"another content":        {stream: []watch.Message{numbered(1, "scan", "y"), two, three, end, closed("done")}, problem: "event 1 has another content"},
		"taken back":             {stream: []watch.Message{one, two, three, back(2, 3), two, three, end, closed("done")}},
		"not taken back":         {stream: []watch.Message{one, two, three, gap(2, 3), two, three, end, closed("done")}, problem: "event 2 after event 3"},
		"missing after it":       {stream: []watch.Message{one, two, three, back(2, 3), three, end, closed("done")}, problem: "event 2 is missing, and no gap says so"},
		"late":                   {stream: []watch.Message{one, gap(2, 2), three, back(2, 3), two, three, end, closed("done")}},
		"late and still missing": {stream: []watch.Message{one, gap(2, 3), back(3, 3), three, end, closed("done")}, lost: 1},
		"missing after a late":   {stream: []watch.Message{one, gap(2, 3), back(2, 3), three, end, closed("done")}, problem: "event 2 is missing, and no gap says so"},
		"another entry":          {stream: []watch.Message{one, entry(two, "9-1"), three, end, closed("done")}, problem: `event 2 has the id "2"`},
		"another id":             {stream: []watch.Message{one, otherID, three, end, closed("done")}, problem: `event 2 has the id "7"`},
		"not published":          {stream: []watch.Message{one, two, three, numbered(4, "scan", ""), end, closed("done")}, problem: "event 4 was not published"},
		"tokens change places":   {stream: []watch.Message{token("b"), token("a"), one, two, three, end, closed("done")}, problem: "transient event"},
		"a token is repeated":    {stream: []watch.Message{token("a"), token("a"), one, two, three, end, closed("done")}, problem: "transient event"},
		"of another job":         {stream: []watch.Message{{ID: "1", Name: watch.NameEvent, Data: []byte(`{"domain":"chat","job_id":"j","seq":1}`)}}, problem: "an event of job chat/j"},
		"no JSON":                {stream: []watch.Message{{ID: "1", Name: watch.NameEvent, Data: []byte(`{`)}}, problem: "decode"},
		"a gap without numbers":  {stream: []watch.Message{one, {Name: watch.NameGap, Data: []byte(`{}`)}, {Name: watch.NameGap, Data: []byte(`{"from":3,"to":2}`)}}, problem: "gap without numbers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := checker.New(event.DefaultStages())
			for _, e := range []event.Event{of(1, "scan", "x"), of(0, "token", "a"), of(2, "scan", ""), of(3, "scan", ""), of(0, "token", "b"), of(5, "done", ""), of(6, "scan", "")} {
				c.Published(e)
			}
			w := c.Watch("watcher", "scan", "j")
			w.Connected()
			for _, m := range tc.stream {
				w.Message(m)
			}
			r := c.Report()
			require.Equal(t, r, c.Report())
			require.Equal(t, tc.lost, r.Lost)
			require.Equal(t, tc.problem == "" && tc.lost == 0, r.OK(), "%+v", r)
			text, err := json.Marshal(r.Problems)
			require.NoError(t, err)
			if tc.problem == "" {
				require.Empty(t, r.Problems)
			} else {
				require.Contains(t, fmt.Sprint(r.Problems), tc.problem, "%s", text)
			}
		})
	}
}

// A number that was published with two contents has the same one for all watchers.
func TestWatchersReceiveTheSame(t *testing.T) {
	t.Parallel()
	for _, second := range []string{"x", "y"} {
		c := checker.New(event.DefaultStages())
		c.Published(of(1, "done", "x"))
		c.Published(of(1, "done", "y"))
		for i, status := range []string{"x", second} {
			w := c.Watch(fmt.Sprint("watcher ", i), "scan", "j")
			w.Message(numbered(1, "done", status))
			w.Message(closed("done"))
		}
		require.Equal(t, second == "x", c.Report().OK())
	}
}

// A watcher that reconnects after the last event gets no message for the end.
func TestTheEndWithoutAMessage(t *testing.T) {
	t.Parallel()
	c := checker.New(event.DefaultStages())
	c.Published(of(1, "done", ""))
	w := c.Watch("watcher", "scan", "j")
	w.Message(numbered(1, "done", ""))
	require.False(t, c.Report().OK())
	w.Ended("done")
	require.True(t, c.Report().OK())
}

// A new connection may repeat the transient events after the last number, and no earlier ones.
func TestTransientEventsAfterAReconnect(t *testing.T) {
	t.Parallel()
	for status, ok := range map[string]bool{"a": false, "b": true} {
		c := checker.New(event.DefaultStages())
		for _, e := range []event.Event{of(1, "scan", ""), of(0, "token", "a"), of(2, "scan", ""), of(0, "token", "b"), of(3, "done", "")} {
			c.Published(e)
		}
		w := c.Watch("watcher", "scan", "j")
		w.Connected()
		for _, m := range []watch.Message{numbered(1, "scan", ""), token("a"), numbered(2, "scan", ""), token("b")} {
			w.Message(m)
		}
		w.Connected()
		for _, m := range []watch.Message{token(status), numbered(3, "done", ""), closed("done")} {
			w.Message(m)
		}
		require.Equal(t, ok, c.Report().OK(), status)
	}
}
