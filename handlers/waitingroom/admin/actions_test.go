package admin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// action returns that of a verb.
func (r *rig) action(verb string) operate.Action {
	r.t.Helper()
	for _, a := range Actions(func() *room.Store { return r.rooms }) {
		if a.Name == NameOf(verb) {
			return a
		}
	}
	require.Fail(r.t, "no such action", verb)
	return operate.Action{}
}

func input(pairs ...string) operate.Input {
	in := operate.Input{"event": {"42"}}
	for i := 0; i < len(pairs); i += 2 {
		in[pairs[i]] = []string{pairs[i+1]}
	}
	return in
}

// preview returns what the preview of an action says.
func (r *rig) preview(verb string, pairs ...string) string {
	r.t.Helper()
	a := r.action(verb)
	in := a.Complete(input(pairs...)) // as a form is
	require.NoError(r.t, a.Check(in))
	answer, err := a.Preview(r.t.Context(), nil, in)
	require.NoError(r.t, err)
	_, err = json.Marshal(answer.Value)
	require.NoError(r.t, err)
	return strings.Join(answer.Lines, " ")
}

func (r *rig) does(verb string, pairs ...string) (room.Status, error) {
	r.t.Helper()
	a := r.action(verb)
	in := a.Complete(input(pairs...))
	if err := a.Check(in); err != nil {
		return room.Status{}, err
	}
	answer, err := a.Do(r.t.Context(), nil, in, operate.Use{Who: "ann (console)", Why: "ticket 4711"})
	s, _ := answer.Value.(room.Status)
	return s, err
}

func TestEachChangeIsAnAction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	all := Actions(func() *room.Store { return r.rooms })
	require.Len(t, all, len(Changes()))
	for _, a := range all {
		require.Contains(t, Changes(), strings.TrimPrefix(a.Name, "room "))
		require.Equal(t, operate.Operator, a.Role, a.Name)
		require.True(t, a.Audited, a.Name)
		require.NotEmpty(t, a.Examples, a.Name)
		require.Equal(t, a.Name == "room close" || a.Name == "room kick", a.Danger == operate.Irreversible, "%s: places are lost", a.Name)
	}
	_, err := Actions(func() *room.Store { return nil })[0].Do(t.Context(), nil, input(), operate.Use{Who: "ann", Why: "x"})
	require.ErrorIs(t, err, errNotStarted)
}

// Each action is previewed, and is done by what the commands and the API do.
func TestAnOperatorSteersARoomWithActions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.Equal(t, "Event 42 has no room. One would be created, and would be open.", r.preview(room.Open, "capacity", "500"))
	require.Contains(t, r.preview(room.Open, "opens-at", "2999-12-01T10:00:00Z"), "would be scheduled")
	require.Contains(t, r.preview(room.Open, "mode", "shuffle"), "would be pre-queue")
	_, err := r.rooms.RoomStatus(t.Context(), "42")
	require.ErrorIs(t, err, room.ErrUnknown, "a preview creates no room")
	_, err = r.action(room.Hold).Preview(t.Context(), nil, input())
	var exit *app.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, app.ExitBad, exit.Code)

	s, err := r.does(room.Open, "capacity", "500", "concurrency", "20")
	require.NoError(t, err)
	require.Equal(t, []any{"open", int64(500), int64(20), int64(-1)}, []any{s.State, s.Capacity, s.Concurrency, s.PerMinute})
	r.enter("ann")
	r.enter("ben")

	require.Equal(t, "Event 42 is open, and would be paused. Nobody would be promoted until room resume. The queue keeps the places of 2 users.", r.preview(room.Hold))
	s, err = r.does(room.Hold)
	require.NoError(t, err)
	require.Equal(t, "paused", s.State)
	_, err = r.does(room.Hold)
	require.ErrorAs(t, err, &exit)
	require.ErrorContains(t, err, "the room is paused")
	_, err = r.action(room.Hold).Preview(t.Context(), nil, input())
	require.ErrorContains(t, err, "hold of event 42: ")
	require.ErrorContains(t, err, "the room is paused")
	require.Contains(t, r.preview(room.Resume), "would be open. The promotion would continue for 2 users.")
	_, err = r.does(room.Resume)
	require.NoError(t, err)

	text := r.preview(room.Set, "capacity", "450", "per-minute", "60", "mode", "pass-through", "closes-at", "2999-12-01T10:00:00Z")
	require.Equal(t, "Event 42 is open, and would stay so. Capacity: 450, now 500. Promotions per minute: 60, now no limit. Mode: pass-through, now fifo. End: 2999-12-01T10:00:00Z, now none.", text)
	s, err = r.does(room.Set, "per-minute", "60", "opens-at", "0")
	require.NoError(t, err)
	require.Equal(t, []int64{500, 20, 60}, []int64{s.Capacity, s.Concurrency, s.PerMinute}, "an empty field changes nothing")

	require.Contains(t, r.preview(room.Message, "text", "<b>Doors</b>"), "All users would read: <b>Doors</b>")
	s, err = r.does(room.Message, "text", "<b>Doors</b>")
	require.NoError(t, err)
	require.Equal(t, "<b>Doors</b>", s.Message)
	require.Contains(t, r.preview(room.Message), "Users would no longer read: <b>Doors</b>")
	s, err = r.does(room.Message)
	require.NoError(t, err)
	require.Empty(t, s.Message)
	require.Contains(t, r.preview(room.Message), "no message that could be removed")

	require.Contains(t, r.preview(room.Kick, "user", "ben"), "ben waits with 1 ahead. The place would end.")
	require.Contains(t, r.preview(room.Kick, "user", "eve"), "eve has no place now (unknown).")
	s, err = r.does(room.Kick, "user", "ben")
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Waiting)
	require.Contains(t, r.preview(room.Drain), "would be draining. New users would be refused. Those in the queue, 1 user, would be promoted.")
	require.Contains(t, r.preview(room.Close), "would be closed. The queue would end for 1 user, whose places are lost.")
	s, err = r.does(room.Close)
	require.NoError(t, err)
	require.Equal(t, "closed", s.State)

	records, err := r.rooms.Audit(t.Context(), "42", "", 100)
	require.NoError(t, err)
	var verbs []string
	for _, one := range records {
		verbs = append(verbs, one.Verb)
		require.Equal(t, "ann (console)", one.By)
		require.Equal(t, "ticket 4711", one.Why)
	}
	require.Equal(t, []string{"open", "hold", "resume", "set", "message", "message", "kick", "close"}, verbs, "no preview is in it")
}

// A capacity below what is sold or held may be a mistake, so the preview says what follows from it.
func TestAPreviewOfTooFewSeats(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.does(room.Open, "capacity", "2")
	require.NoError(t, err)
	r.enter("ann")
	require.Eventually(t, func() bool {
		_, err := r.rooms.Tick(t.Context(), "42")
		p, failed := r.rooms.Status(t.Context(), "42", "ann")
		return errors.Join(err, failed) == nil && p.State == room.Ready
	}, 2*time.Minute, 5*time.Millisecond)
	require.Contains(t, r.preview(room.Set, "capacity", "0"), "below what is sold or held, which is 1 seat, so nobody")
	require.NotContains(t, r.preview(room.Set, "capacity", "1"), "below")
	require.Contains(t, r.preview(room.Kick, "user", "ann"), "ann has a turn (READY). It would end")
}

// What is wrong with a form is said at its field, before anything is changed.
func TestMistakesInAForm(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.does(room.Open)
	require.NoError(t, err)
	for want, tc := range map[string]struct {
		verb, field string
		in          operate.Input
	}{
		"event: must be 1 to 128 characters":     {room.Hold, "event", operate.Input{"event": {"a/b"}}},
		"EVENT is required":                      {room.Hold, "event", operate.Input{}},
		"USER is required":                       {room.Kick, "user", input()},
		"nothing to set":                         {room.Set, "", input()},
		"--capacity must be a whole number":      {room.Set, "capacity", input("capacity", "many")},
		"capacity: must be >= 0, got -1":         {room.Set, "capacity", input("capacity", "-1")},
		"per_minute: must be at most":            {room.Set, "per-minute", input("per-minute", "1000000001")},
		"--opens-at must be a time such as":      {room.Open, "opens-at", input("opens-at", "tomorrow")},
		"closes_at must be in the future":        {room.Open, "", input("closes-at", "2020-12-01T10:00:00Z")},
		"mode: must be":                          {room.Open, "mode", input("mode", "vip")},
		"message: must have at most 500 charact": {room.Message, "text", input("text", strings.Repeat("x", 501))},
	} {
		a := r.action(tc.verb)
		in := a.Complete(tc.in)
		err := a.Check(in)
		if err == nil {
			_, err = a.Preview(t.Context(), nil, in)
			_, done := a.Do(t.Context(), nil, in, operate.Use{Who: "ann", Why: "x"})
			require.Error(t, done, want)
			require.Equal(t, err.Error(), done.Error(), "the preview refuses it as well")
		}
		var wrong *operate.InputError
		require.ErrorAs(t, err, &wrong, want)
		require.ErrorContains(t, err, want)
		require.Equal(t, tc.field, wrong.Field, want)
	}
	records, err := r.rooms.Audit(context.Background(), "42", "", 10)
	require.NoError(t, err)
	require.Len(t, records, 1)
}
