package operate_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// fleet is a mill with what its instances tell. One of them may run here.
type fleet struct {
	mill
	told []operate.InstanceWork
	err  error
	here map[string]pipeline.RouteWork
}

func (f fleet) Register(r *pipeline.Registry) error {
	if f.told != nil || f.err != nil {
		r.Offer(reader{f})
	}
	if f.here != nil {
		r.Offer(teller{f})
	}
	return f.mill.Register(r)
}

type reader struct{ of fleet }

func (reader) Kind() string { return "kafka" }

func (r reader) ReadWork(context.Context) ([]operate.InstanceWork, bool, error) {
	return r.of.told, false, r.of.err
}

type teller struct{ of fleet }

func (t teller) Work(route string) pipeline.RouteWork { return t.of.here[route] }

// works is the work on the route grind, and on that of its retry topic.
func works(done, failed, again float64) map[string]pipeline.RouteWork {
	return map[string]pipeline.RouteWork{
		"grind":       {DonePerSecond: &done, FailedPerSecond: &failed},
		"grind.retry": {DonePerSecond: &again, FailedPerSecond: new(0.0)},
	}
}

func (f fleet) read(t *testing.T) (operate.Answer, operate.RoutesStatus) {
	t.Helper()
	f.mill = newMill(time.Now())
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "a"}, f)
	require.NoError(t, err)
	a, err := operate.Routes().Read(t.Context(), reg, nil)
	require.NoError(t, err)
	value, ok := a.Value.(operate.RoutesStatus)
	require.True(t, ok)
	return a, value
}

func TestTheRatesOfAllInstancesAreSummed(t *testing.T) {
	t.Parallel()
	a, v := fleet{told: []operate.InstanceWork{{Instance: "a", Routes: works(1, 1, 0)}, {Instance: "b", Routes: works(20, 0.5, 3)}}, here: works(100, 2, 4)}.read(t)
	require.Equal(t, []float64{127, 2.5}, []float64{*v.Routes[0].DonePerSecond, *v.Routes[0].FailedPerSecond}, "what this instance does now, and not what it told")
	require.Equal(t, []string{"grind", "127", "2.5"}, a.Tables[0].Rows[0][:3])
	require.Equal(t, []string{"bake", "-", "-"}, a.Tables[0].Rows[1][:3], "no instance tells it")
	require.Empty(t, v.Unknown+v.RatesUnknown)
	text, err := json.Marshal(v.Routes[:2])
	require.NoError(t, err)
	require.Contains(t, string(text), `"done_per_second":127,"failed_per_second":2.5`)
	require.Contains(t, string(text), `"done_per_second":null,"failed_per_second":null`)
}

// An instance that has told nothing for a while is named. Its numbers are old, and its last error stays true.
func TestAnInstanceThatIsSilentIsNotAddedIn(t *testing.T) {
	t.Parallel()
	old := works(20, 5, 3)
	grind := old["grind"]
	grind.InFlight, grind.LastError = 9, &pipeline.LastError{At: time.Now(), Record: "grain/4@17", Class: "timeout", Text: "no answer"}
	old["grind"] = grind
	a, v := fleet{told: []operate.InstanceWork{{Instance: "a", Routes: works(1, 0, 1)}, {Instance: "b", Routes: old, Silent: 12 * time.Second}, {Instance: "c"}}}.read(t)
	require.Equal(t, []float64{2, 0}, []float64{*v.Routes[0].DonePerSecond, *v.Routes[0].FailedPerSecond})
	require.Equal(t, "2 instances have told nothing: b (for 12s), c", v.Unknown)
	require.Equal(t, v.Unknown, v.RatesUnknown)
	require.Nil(t, v.Routes[0].InFlight)
	require.Equal(t, []string{"b", "no answer"}, []string{v.Routes[0].LastError.Instance, v.Routes[0].LastError.Text})
	require.Contains(t, a.Notes, "Rates, and why messages are tried again, are not known of all instances: 2 instances have told nothing: b (for 12s), c.")

	_, v = fleet{told: []operate.InstanceWork{{Instance: "a", Routes: old, Silent: 12 * time.Second}}, here: works(1, 0, 1)}.read(t)
	require.EqualValues(t, 2, *v.Routes[0].DonePerSecond, "what runs here is known in any case")
	require.Empty(t, v.Unknown)
}

// An instance that was killed is trouble of all routes. Its numbers are not missing, because it has none any more.
func TestAnInstanceThatIsGoneIsTold(t *testing.T) {
	t.Parallel()
	a, v := fleet{told: []operate.InstanceWork{{Instance: "a", Routes: works(1, 0, 1)}, {Instance: "b", Gone: time.Now().Add(-time.Minute)}}}.read(t)
	require.Empty(t, v.Unknown)
	require.EqualValues(t, 2, *v.Routes[0].DonePerSecond)
	require.Len(t, v.Gone, 1)
	require.Equal(t, v.Gone, a.Checks)
	require.Equal(t, []any{"instance b", operate.Warn}, []any{v.Gone[0].Name, v.Gone[0].Level})
	require.Regexp(t, `^is gone without having been stopped; its last sign of life was at 20\S+Z, 1m0s ago. What`, v.Gone[0].Text)
}

// An instance has no rate in its first interval, which is not the same as 0.
func TestAnInstanceThatHasJustStartedHasNoRate(t *testing.T) {
	t.Parallel()
	young := map[string]pipeline.RouteWork{"grind": {InFlight: 3}, "grind.retry": {}}
	a, v := fleet{told: []operate.InstanceWork{{Instance: "b", Routes: young}}}.read(t)
	require.Nil(t, v.Routes[0].DonePerSecond)
	require.Nil(t, v.Routes[0].FailedPerSecond)
	require.Equal(t, []string{"grind", "-", "-"}, a.Tables[0].Rows[0][:3])
	require.EqualValues(t, 3, *v.Routes[0].InFlight)

	a, v = fleet{told: []operate.InstanceWork{{Instance: "b", Routes: young}, {Instance: "c", Routes: works(5, 0, 0)}}}.read(t)
	require.EqualValues(t, 5, *v.Routes[0].DonePerSecond)
	require.Equal(t, "1 instance has no rate yet: b", v.RatesUnknown)
	require.Empty(t, v.Unknown, "all else is known")
	require.Contains(t, a.Notes, "Rates are not known of all instances: 1 instance has no rate yet: b.")
}

func TestWithoutRedisOnlyThisInstanceIsKnown(t *testing.T) {
	t.Parallel()
	_, v := fleet{here: works(1, 0, 1)}.read(t)
	require.EqualValues(t, 2, *v.Routes[0].DonePerSecond)
	require.Equal(t, "without the plugin redis, instances tell each other nothing, so only this one is known", v.RatesUnknown)

	a, v := fleet{err: errors.New("refused"), here: works(1, 0, 1)}.read(t)
	require.EqualValues(t, 2, *v.Routes[0].DonePerSecond)
	require.Equal(t, "refused", v.RatesUnknown)
	require.Contains(t, a.Notes, "Rates, and why messages are tried again, are not known of all instances: refused.")
}

// A rate reads the same in a table, on a page and in the status of a campaign.
func TestARateHasADecimalWhereItIsLow(t *testing.T) {
	t.Parallel()
	for rate, text := range map[float64]string{0: "0", 0.04: "0.0", 0.26: "0.3", 2: "2.0", 9.94: "9.9", 9.96: "10", 10: "10", 1234.5: "1235"} {
		require.Equal(t, text, operate.PerSecond(rate, func(n int64) string { return strconv.FormatInt(n, 10) }), rate)
	}
}
