package streams

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
)

// State is the state of a stream at one moment.
type State struct {
	Exists bool
	// Incarnation changes when the stream was lost and made again. Empty: no stream, or one that no
	// Manager has seen yet (Ensure gives it one).
	Incarnation string
	// Drained: nothing is pending and nothing unread in the stream's own group. True for a stream
	// that is absent.
	Drained bool
	Length  int64 // entries, acknowledged ones that are not trimmed yet included
	Pending int64 // entries in flight or released, over all groups
	// Owner is the id of the deployment that the stream belongs to; empty: none yet.
	Owner string
	// Foreign: the owner is another deployment.
	Foreign bool
	// Delaying are the foreign groups that hold entries which the own group has released.
	Delaying []DelayingGroup
}

// InstanceStatus is what one instance says about a stream it reads.
type InstanceStatus struct {
	Instance    string    `json:"instance"`
	Stream      string    `json:"stream"`
	Group       string    `json:"group"`
	Slots       int       `json:"slots"`
	Paused      bool      `json:"paused"`
	Since       time.Time `json:"since"`        // when its reader was started
	LastMessage time.Time `json:"last_message"` // the last began or ended; zero: none
	InFlight    int       `json:"in_flight"`
	// Note is what Options.Note returned; nil: nothing, or the instance is of another version.
	Note json.RawMessage `json:"note,omitempty"`
}

// wireStatus is the JSON of an instance's field in meta.
type wireStatus struct {
	Slots    int             `json:"slots"`
	Paused   bool            `json:"paused,omitempty"`
	Since    int64           `json:"since"` // Unix milliseconds
	Last     int64           `json:"last,omitempty"`
	InFlight int             `json:"in_flight"`
	Next     int64           `json:"next,omitempty"` // milliseconds until the next status, at most
	Note     json.RawMessage `json:"note,omitempty"`
}

// missedVisits is after how many of its own visits that did not come an instance's status is stale.
const missedVisits = 5

func (m *Manager) statusField() string { return reclaim.InstanceField(m.opts.Instance) }

// Inspect looks at the stream of id.
func (m *Manager) Inspect(ctx context.Context, id string) (State, error) {
	st, _, _, err := m.inspect(ctx, id)
	return st, err
}

// Look returns what every instance that reads the stream of id says about it, by name, and what Inspect
// does, of one moment. An instance is left out when it has not written for five rounds, and no less than
// 10 s, longer than it announced.
func (m *Manager) Look(ctx context.Context, id string) ([]InstanceStatus, State, error) {
	st, at, meta, err := m.inspect(ctx, id)
	if err != nil {
		return nil, State{}, err
	}
	return m.statuses(id, at, meta), st, nil
}

// Statuses returns what Look says of the instances that read the streams of ids, by id, with one round trip and the
// least work for the server. An id that could not be read is missing, and the error says why.
func (m *Manager) Statuses(ctx context.Context, ids ...string) (map[string][]InstanceStatus, error) {
	all := make(map[string][]InstanceStatus, len(ids))
	client := m.opts.Client()
	switch {
	case len(ids) == 0:
		return all, nil
	case client == nil:
		return nil, fmt.Errorf("streams: read what instances say: %w: the client was not started", pipeline.ErrUnavailable)
	}
	pipe := client.Pipeline()
	at := pipe.Time(ctx) // in a cluster that of any master, which a few seconds don't matter to
	metas := make([]*goredis.MapStringStringCmd, len(ids))
	for i, id := range ids {
		metas[i] = pipe.HGetAll(ctx, m.keys(id)[1])
	}
	_, _ = pipe.Exec(ctx) // the error of its first command, and each is looked at below
	now, err := at.Result()
	if err != nil {
		return nil, fmt.Errorf("streams: read what instances say: %w", err)
	}
	for i, id := range ids {
		meta, wrong := metas[i].Result()
		if wrong != nil {
			err = cmp.Or(err, fmt.Errorf("streams: read what instances say of %s: %w", m.opts.Kind.Stream(id), m.refusal(id, wrong)))
			continue
		}
		all[id] = m.statuses(id, now, meta)
	}
	return all, err
}

func (m *Manager) statuses(id string, at time.Time, meta map[string]string) []InstanceStatus {
	stale := max(missedVisits*m.opts.Config().ReconcileInterval, 10*time.Second)
	var out []InstanceStatus
	for field, value := range meta {
		instance, ok := reclaim.FieldInstance(field)
		if !ok {
			continue
		}
		heard, text, _ := strings.Cut(value, " ")
		millis, err := strconv.ParseInt(heard, 10, 64)
		var w wireStatus
		if err != nil || json.Unmarshal([]byte(text), &w) != nil {
			continue // of another version; it goes stale by itself
		}
		if at.Sub(time.UnixMilli(millis+w.Next)) > stale {
			continue
		}
		st := InstanceStatus{
			Instance: instance, Stream: m.opts.Kind.Stream(id), Group: m.opts.Kind.Group(id),
			Slots: w.Slots, Paused: w.Paused, Since: time.UnixMilli(w.Since), InFlight: w.InFlight, Note: w.Note,
		}
		if w.Last > 0 {
			st.LastMessage = time.UnixMilli(w.Last)
		}
		out = append(out, st)
	}
	sorted.By(out, func(a, b InstanceStatus) int { return strings.Compare(a.Instance, b.Instance) })
	return out
}

// inspect runs inspect.lua: the state, the server's time, the fields of meta.
func (m *Manager) inspect(ctx context.Context, id string) (State, time.Time, map[string]string, error) {
	stream := m.opts.Kind.Stream(id)
	fail := func(err error) (State, time.Time, map[string]string, error) {
		return State{}, time.Time{}, nil, fmt.Errorf("streams: inspect %s: %w", stream, err)
	}
	client := m.opts.Client()
	if client == nil {
		return fail(fmt.Errorf("%w: the client was not started", pipeline.ErrUnavailable))
	}
	reply, err := m.scripts.inspect.Run(ctx, client, m.keys(id), m.opts.Config().groupArgs(m.opts.Kind.Group(id))...).Slice()
	if err != nil {
		return fail(m.refusal(id, err))
	}
	if len(reply) != 8 {
		return fail(fmt.Errorf("unexpected reply %v", reply))
	}
	token, ok1 := reply[1].(string)
	flat, ok2 := reply[6].([]any)
	n, err := integers([]any{reply[0], reply[2], reply[3], reply[4], reply[5]}, nil)
	if err != nil || !ok1 || !ok2 {
		return fail(fmt.Errorf("unexpected reply %v", reply))
	}
	delaying, err := redis.ParseDelaying(reply[7])
	if err != nil {
		return fail(err)
	}
	meta := make(map[string]string, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		field, _ := flat[i].(string)
		meta[field], _ = flat[i+1].(string)
	}
	st := State{Exists: n[0] == 1, Drained: n[1] == 1, Length: n[2], Pending: n[3], Delaying: delaying}
	own := m.opts.Owner()
	st.Owner = meta["owner"]
	st.Foreign = own != "" && st.Owner != "" && st.Owner != own
	if st.Exists {
		st.Incarnation = token
	}
	return st, time.UnixMilli(n[4]), meta, nil
}
