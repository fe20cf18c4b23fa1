package operate_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// place is an examination with one Examine per function.
func place(name string, closed *atomic.Int32, reads ...func(context.Context) ([]operate.Check, error)) operate.Examination {
	return operate.Examination{Place: name, Open: func(context.Context) ([]operate.Examine, func(), error) {
		var list []operate.Examine
		for i, read := range reads {
			list = append(list, operate.Examine{What: fmt.Sprint("part ", i), Read: read})
		}
		return list, func() { closed.Add(1) }, nil
	}}
}

func says(checks ...operate.Check) func(context.Context) ([]operate.Check, error) {
	return func(context.Context) ([]operate.Check, error) { return checks, nil }
}

func TestDiagnoseCountsAndNamesWhatIsFound(t *testing.T) {
	t.Parallel()
	var closed atomic.Int32
	var progress []int
	d := operate.Diagnose(t.Context(), []operate.Examination{
		place("redis", &closed,
			says(operate.Check{Level: operate.OK, Text: "fine"}, operate.Check{Name: "redis own name", Level: operate.Warn, Text: "small", Remedy: "grow"}),
			func(context.Context) ([]operate.Check, error) {
				return []operate.Check{{Level: operate.OK, Text: "the first of two"}}, errors.New("odd:\n\treply\n\treply")
			}),
		{
			Place: "kafka", Remedy: "start it", Runbook: "here",
			Open: func(context.Context) ([]operate.Examine, func(), error) {
				return nil, nil, fmt.Errorf("%w: refused", pipeline.ErrUnavailable)
			},
		},
	}, operate.CheckLimit, func(done int) { progress = append(progress, done) })
	require.Equal(t, []operate.Check{
		{Name: "redis part 0", Level: operate.OK, Text: "fine"},
		{Name: "redis own name", Level: operate.Warn, Text: "small", Remedy: "grow"},
		{Name: "redis part 1", Level: operate.OK, Text: "the first of two"},
		{Name: "redis part 1", Level: operate.Fail, Text: "odd: reply"},
		{Name: "kafka", Level: operate.Fail, Text: "server unavailable: refused", Remedy: "start it", Runbook: "here"},
	}, d.Checks)
	require.Equal(t, []string{"kafka"}, d.Away, "an error of a server that answers is no absence")
	require.Equal(t, "2 ok, 1 warning, 2 failures", d.Summary())
	require.Equal(t, []int{1, 2}, progress)
	require.Equal(t, int32(1), closed.Load())
	require.Equal(t, "1 ok, 0 warnings, 1 failure", operate.Diagnosis{OK: 1, Failures: 1}.Summary())
}

// A check of one plugin must not end the command that asks all of them.
func TestAPanicIsAFailureOfItsCheck(t *testing.T) {
	t.Parallel()
	var closed atomic.Int32
	d := operate.Diagnose(t.Context(), []operate.Examination{
		place("redis", &closed,
			func(context.Context) ([]operate.Check, error) { return []operate.Check{}[:closed.Load()+1], nil },
			says(operate.Check{Level: operate.OK, Text: "fine"})),
		{Place: "kafka", Remedy: "start it", Open: func(context.Context) ([]operate.Examine, func(), error) {
			panic("no\nbroker")
		}},
		{Place: "shop", Open: func(context.Context) ([]operate.Examine, func(), error) {
			return []operate.Examine{{What: "door", Read: says(operate.Check{Level: operate.OK, Text: "open"})}}, func() { panic("stuck") }, nil
		}},
	}, operate.CheckLimit, nil)
	require.Len(t, d.Checks, 5)
	require.Equal(t, operate.Check{Name: "redis part 1", Level: operate.OK, Text: "fine"}, d.Checks[1])
	require.Equal(t, operate.OK, d.Checks[4].Level)
	for i, want := range map[int]string{
		0: `^redis part 0: panic: runtime error: slice bounds out of range .*, in .*TestAPanic.*func\d \(examine_test.go:\d+\); report it`,
		2: `^kafka: panic: no; broker, in .*TestAPanic.* \(examine_test.go:\d+\); report it`,
		3: `^shop: close: panic: stuck, in .*TestAPanic.*; report it`,
	} {
		require.Equal(t, operate.Fail, d.Checks[i].Level)
		require.Regexp(t, want, d.Checks[i].String())
	}
	require.Empty(t, d.Away, "the server is not the cause")
	require.Equal(t, int32(1), closed.Load())

	reg, err := pipeline.NewRegistry(pipeline.Env{}, wrong{}, examined{"a"})
	require.NoError(t, err)
	d = operate.Diagnose(t.Context(), operate.Examinations(reg)[:1], operate.CheckLimit, nil)
	require.Regexp(t, `^wrong: panic: no list, in .*wrong.*Examinations`, d.Checks[0].String())
}

// wrong is a plugin that can't even say what to examine.
type wrong struct{}

func (wrong) Name() string                          { return "wrong" }
func (w wrong) Register(r *pipeline.Registry) error { r.Offer(w); return nil }
func (wrong) Examinations() []operate.Examination   { panic("no list") }

// What never returns, even after its context has ended, must not hide what others say.
func TestDiagnoseDoesNotWaitForWhatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var closed, late atomic.Int32
		end := make(chan struct{})
		hang := func(context.Context) ([]operate.Check, error) { <-end; return nil, nil }
		obeys := func(ctx context.Context) ([]operate.Check, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("read: %w", ctx.Err())
		}
		explains := func(ctx context.Context) ([]operate.Check, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("%w: connection refused", pipeline.ErrUnavailable)
		}
		began := time.Now()
		d := operate.Diagnose(t.Context(), []operate.Examination{
			place("a", &closed, hang, says(operate.Check{Level: operate.OK, Text: "fine"}), obeys, explains),
			{Place: "b", Open: func(context.Context) ([]operate.Examine, func(), error) {
				<-end
				return nil, func() { late.Add(1) }, nil
			}},
		}, 5*time.Second, nil)
		require.Equal(t, []operate.Check{
			{Name: "a part 0", Level: operate.Fail, Text: "no answer within 5s"},
			{Name: "a part 1", Level: operate.OK, Text: "fine"},
			{Name: "a part 2", Level: operate.Fail, Text: "no answer within 5s"},
			{Name: "a part 3", Level: operate.Fail, Text: "server unavailable: connection refused"},
			{Name: "b", Level: operate.Fail, Text: "no answer within 5s"},
		}, d.Checks)
		require.Equal(t, []string{"a", "b"}, d.Away)
		require.Equal(t, 11*time.Second, time.Since(began), "the limit of the checks, and of the end of the connection")
		require.Zero(t, closed.Load(), "what hangs still uses the connection")
		close(end)
		synctest.Wait()
		require.Equal(t, int32(1), closed.Load(), "it is closed when the last check has ended")
		require.Equal(t, int32(1), late.Load(), "so is one that came too late")
	})
}

// examined is a plugin that offers examinations of the places.
type examined []string

func (e examined) Name() string                        { return "plugin-" + e[0] }
func (e examined) Register(r *pipeline.Registry) error { r.Offer(e); return nil }
func (e examined) Examinations() (list []operate.Examination) {
	for _, name := range e {
		list = append(list, operate.Examination{Place: name, Remedy: e[0]})
	}
	return list
}

func TestExaminationsHaveEachPlaceOnce(t *testing.T) {
	t.Parallel()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, examined{"a", "db"}, examined{"b", "db"})
	require.NoError(t, err)
	var places []string
	for _, e := range operate.Examinations(reg) {
		places = append(places, e.Place+" of "+e.Remedy)
	}
	require.Equal(t, []string{"a of a", "db of a", "b of b"}, places)
}
