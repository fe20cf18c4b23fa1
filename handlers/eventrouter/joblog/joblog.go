package joblog

import (
	"bytes"
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/plugins/redis"
)

//go:embed lua/append.lua
var luaAppend string

//go:embed lua/read.lua
var luaRead string

// Log reads and writes the logs of all jobs. Safe for concurrent use.
type Log struct {
	server       *redis.Server
	config       Config
	stages       event.Stages
	append, read *redis.Script
}

// New returns the logs on a server. It opens no connection.
func New(server *redis.Server, config Config, stages event.Stages) *Log {
	return &Log{server: server, config: config, stages: stages, append: redis.NewScript(luaAppend), read: redis.NewScript(luaRead)}
}

// StateKey returns the key of a job's state.
func StateKey(domain, jobID string) string { return domain + ":state:{" + jobID + "}" }

// LogKey returns the key of a job's log.
func LogKey(domain, jobID string) string { return domain + ":log:{" + jobID + "}" }

// FeedPrefix begins the keys of a domain's feeds.
func FeedPrefix(domain string) string { return domain + ":feed:" }

// FeedKey returns the stream with the events of one shard: the shard of the stream that they were
// read from.
func FeedKey(domain string, shard int) string { return FeedPrefix(domain) + strconv.Itoa(shard) }

// Outcome says what an event changed.
type Outcome int

// The outcomes of an append.
const (
	Added     Outcome = iota // it is in the log now
	Duplicate                // the log has this event already, or had its number
	AfterEnd                 // its number is greater than that of the end, so it is not shown
	Expired                  // the log has expired, so the event may be a repetition
	Conflict                 // the log has another event with its number, so it is lost
)

// Answer is the result for one event.
type Answer struct {
	Outcome Outcome
	// Text is the JSON of the event with this number, for the feed. A duplicate and a conflict have
	// that of the first one. Empty: the event is not shown.
	Text string
}

// AppendResult is the result for the events of one job.
type AppendResult struct {
	Answers      []Answer
	StateUpdates int   // how often the state changed
	Err          error // some of the events may be in the log
}

// maxCall is the maximum number of events in a call of the script. It limits how long the server is
// busy for one job.
const maxCall = 200

// Append adds numbered events to the logs of their jobs, in one pipeline. perJob has the events of
// one job in each element. A job that fails does not affect the others. There is one result per
// job.
func (l *Log) Append(ctx context.Context, domain string, perJob [][]event.Event) []AppendResult {
	results := make([]AppendResult, len(perJob))
	var calls []*redis.Call
	var take []func()
	for i, events := range perJob {
		r := &results[i]
		r.Answers = make([]Answer, len(events))
		for start := 0; start < len(events); start += maxCall {
			end := min(start+maxCall, len(events))
			call, err := l.appendCall(domain, events[start:end], r.Answers[start:end])
			if err != nil {
				r.Err = err
				break
			}
			calls = append(calls, call)
			take = append(take, func() { r.Err = errors.Join(r.Err, r.takeReply(call, r.Answers[start:end])) })
		}
	}
	if len(calls) == 0 {
		return results
	}
	_ = l.server.Do(ctx, calls...) // each call has its error
	for _, f := range take {
		f()
	}
	return results
}

func (l *Log) appendCall(domain string, events []event.Event, answers []Answer) (*redis.Call, error) {
	args := []any{
		l.config.StateTTL.Milliseconds(), l.config.LogTTL.Milliseconds(), l.config.LogTTLAfterEnd.Milliseconds(), l.config.LogMax,
		strings.Join(l.stages.Terminal, "\n"),
	}
	for i, e := range events {
		text, err := e.JSON()
		if err != nil {
			return nil, fmt.Errorf("encode an event of job %s: %w", e.JobID, err)
		}
		answers[i].Text = string(text)
		terminal := 0
		if l.stages.IsTerminal(e.Stage) {
			terminal = 1
		}
		addedAt, _, _ := strings.Cut(e.StreamID, "-")
		args = append(args, e.Seq, addedAt, terminal, answers[i].Text)
	}
	job := events[0].JobID
	return l.append.Call([]string{LogKey(domain, job), StateKey(domain, job)}, args...), nil
}

// takeReply stores the reply of append.lua for the events of answers.
func (r *AppendResult) takeReply(call *redis.Call, answers []Answer) error {
	reply, err := call.List()
	if err != nil {
		return err
	}
	if len(reply) != 1+len(answers) {
		return fmt.Errorf("append.lua: unexpected reply with %d values for %d events", len(reply), len(answers))
	}
	if reply[0] == int64(1) {
		r.StateUpdates++
	}
	for i, one := range reply[1:] {
		switch v := one.(type) {
		case string:
			answers[i] = Answer{sameEvent(answers[i].Text, v), v}
		case int64:
			answers[i].Outcome = Outcome(v)
			if answers[i].Outcome != Added && answers[i].Outcome != Duplicate {
				answers[i].Text = ""
			}
		}
	}
	return nil
}

// sameEvent compares an event with the one that the log has under its number. A worker that repeats
// an event writes another entry, and perhaps another id and time, so only what the event says counts.
func sameEvent(text, stored string) Outcome {
	one, err := event.Decode([]byte(text))
	other, otherErr := event.Decode([]byte(stored))
	if err == nil && otherErr == nil && one.Stage == other.Stage && one.Status == other.Status && bytes.Equal(one.Data, other.Data) {
		return Duplicate
	}
	return Conflict
}

// Kept says what Redis has of a job before a reset.
type Kept struct {
	State, Log bool  // the keys exist
	Top        int64 // the highest number; 0: there is none
	End        int64 // the number of the event that ended the job; 0: the job runs
}

// Kept returns what Redis has of a job.
func (l *Log) Kept(ctx context.Context, domain, jobID string) (Kept, error) {
	state, log := redis.Command("EXISTS", StateKey(domain, jobID)), redis.Command("EXISTS", LogKey(domain, jobID))
	read := l.read.Call([]string{LogKey(domain, jobID), StateKey(domain, jobID)}, 0, 1)
	_ = l.server.Do(ctx, state, log, read) // each call has its error
	states, err := state.Int()
	logs, logErr := log.Int()
	if err = errors.Join(err, logErr); err != nil {
		return Kept{}, fmt.Errorf("read the log of job %s: %w", jobID, err)
	}
	s, err := l.snapshot(read)
	if err != nil && !poll.IsReply(err) { // a key of another type can be reset, too
		return Kept{}, fmt.Errorf("read the log of job %s: %w", jobID, err)
	}
	return Kept{State: states > 0, Log: logs > 0, Top: s.Top, End: s.End}, nil
}
