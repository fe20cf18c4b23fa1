package redis

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A command, which handles nothing, says why a message waits for its retry, and which instance had the error.
func TestTheReportOfRoutesHasTheLastErrorOfAnyInstance(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		process := func() (orders, *Plugin) {
			p, _, _ := retryPlugin(t, s)
			p.cfg.DB = db
			return orders{p, "work", make(chan string, 100), pipelinetest.NewRecorder("dead")}, p
		}
		o, p := process()
		reg := pipelinetest.Start(t, p, o)
		idle, other := process()
		idle.name = "idle"
		pipelinetest.Start(t, other, idle)

		command, absent := process()
		commands, err := pipeline.NewRegistry(pipeline.Env{Instance: reg.Env().Instance}, absent, command)
		require.NoError(t, err)
		var answer operate.Answer
		read := func() operate.RouteStatus {
			answer, err = operate.Routes().Read(t.Context(), commands, nil)
			require.NoError(t, err)
			value, _ := answer.Value.(operate.RoutesStatus)
			require.Empty(t, value.Unknown)
			return value.Routes[0]
		}
		require.Nil(t, read().LastError)
		require.NoError(t, p.Sink("work").Publish(t.Context(), message.NewMessage("1", []byte("x"))))
		<-o.runs
		redistest.Eventually(t, "the instance has told it with its presence", func() bool { return read().LastError != nil })
		last := read().LastError
		require.Equal(t, []string{"error", "not now", reg.Env().Instance}, []string{last.Class, last.Text, last.Instance})
		require.Regexp(t, `^work@\d+-0$`, last.Record)
		require.Contains(t, strings.Join(answer.Notes, "\n"), fmt.Sprintf("Last error of orders: %s failed (error", last.Record))

		text, err := json.Marshal(answer.Value)
		require.NoError(t, err)
		require.Contains(t, string(text), `"class":"error","text":"not now"`)
	})
}

// An instance of an earlier version tells no work, so what is known is not that of all.
func TestAnInstanceThatTellsNoWork(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		o := process(t, s, db).starts(t)
		work, err := operate.ReadWork(t.Context(), o.reg)
		require.NoError(t, err)
		require.Equal(t, "1 instance has told nothing: "+o.reg.Env().Instance, work.Unknown, "it has no chain")
		require.Zero(t, work.Known)
	})
}

// What an instance has not told is not known, and one without routes does nothing.
func TestWhatIsNotKnownOfAnInstance(t *testing.T) {
	t.Parallel()
	of := func(state instanceState, silent time.Duration) []any {
		s := instance{name: "a", alive: true, state: &state, silent: silent}.status()
		text, err := json.Marshal([]any{s.Started, s.DonePerSecond, s.FailedPerSecond, s.InFlight})
		require.NoError(t, err)
		var all []any
		require.NoError(t, json.Unmarshal(text, &all))
		return all
	}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	work := map[string]pipeline.RouteWork{"a": {InFlight: 2, DonePerSecond: new(1.5), FailedPerSecond: new(0.5)}, "a.retry": {InFlight: 1, DonePerSecond: new(2.0), FailedPerSecond: new(0.0)}}
	require.Equal(t, []any{"2026-11-30T12:00:00Z", 3.5, 0.5, 3.0}, of(instanceState{Started: at, Work: work}, 0))
	require.Equal(t, []any{nil, nil, nil, nil}, of(instanceState{}, 0), "an earlier version, or no chain")
	require.Equal(t, []any{nil, 0.0, 0.0, 0.0}, of(instanceState{Work: map[string]pipeline.RouteWork{}}, 0))
	require.Equal(t, []any{nil, nil, nil, nil}, of(instanceState{Work: work}, silentAfter))

	text, err := instanceState{Work: map[string]pipeline.RouteWork{}}.encode()
	require.NoError(t, err)
	require.Contains(t, string(text), `"work":{}`, "it is not the same as nothing")
}

// What an instance tells is bounded: the latest errors stay.
func TestTheStateOfAnInstanceIsBounded(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	s := instanceState{Work: map[string]pipeline.RouteWork{}}
	for n := range 400 {
		s.Work[fmt.Sprint("route", n)] = pipeline.RouteWork{InFlight: 7, DonePerSecond: new(1.0 / 3), FailedPerSecond: new(1.0 / 3), LastError: &pipeline.LastError{
			At: now.Add(time.Duration(n) * time.Second), Record: strings.Repeat("r", 256), Class: "error", Text: strings.Repeat("<", 256),
		}}
	}
	text, err := s.encode()
	require.NoError(t, err)
	require.LessOrEqual(t, len(text), stateBytes)
	var told instanceState
	require.NoError(t, json.Unmarshal(text, &told))
	require.Len(t, told.Work, 400)
	require.NotNil(t, told.Work["route399"].LastError)
	require.Nil(t, told.Work["route0"].LastError)
	require.EqualValues(t, 7, told.Work["route0"].InFlight)
	require.NotNil(t, s.Work["route0"].LastError, "what the caller has is left alone")
}
