package operate_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// chronicle is a mill with what its instances did.
type chronicle struct {
	mill
	read func() (map[int64]map[string]operate.Handled, error)
}

func (c chronicle) Register(r *pipeline.Registry) error {
	if c.read != nil {
		r.Offer(historian{c})
	}
	return c.mill.Register(r)
}

type historian struct{ of chronicle }

func (h historian) ReadHistory(context.Context) (map[int64]map[string]operate.Handled, error) {
	return h.of.read()
}

func pastOf(t *testing.T, read func() (map[int64]map[string]operate.Handled, error)) ([]operate.PastWork, error) {
	t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, chronicle{newMill(time.Now()), read})
	require.NoError(t, err)
	past, err := operate.ReadHistory(t.Context(), reg)
	for _, step := range past {
		for _, one := range operate.StatusOf(reg, nil, nil, step.Work) {
			require.NotEqual(t, "grind.retry", one.Route, "it is part of the route that retries")
		}
	}
	return past, err
}

// A step that is over is known of all routes, or of none.
func TestTheHistoryOfRoutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(historyOver)
		now := time.Now().Unix() / 15
		past, err := pastOf(t, func() (map[int64]map[string]operate.Handled, error) {
			return map[int64]map[string]operate.Handled{
				now - 61: {"grind": {Done: 1000}}, // too old
				now - 60: {"grind": {Done: 30, Failed: 15}, "grind.retry": {Done: 3}, "of another version": {Done: 7}},
				now - 1:  {},
				now:      {"grind": {Done: 1000}}, // it is not over
			}, nil
		})
		require.NoError(t, err)
		require.Len(t, past, operate.HistorySteps)
		require.Equal(t, time.Unix((now-60)*15, 0).UTC(), past[0].Begin)
		require.Equal(t, time.Unix((now-1)*15, 0).UTC(), past[59].Begin)
		rates := func(step int, route string) []any {
			one, known := past[step].Work.Routes[route]
			if !known {
				return nil
			}
			return []any{*one.DonePerSecond, *one.FailedPerSecond}
		}
		require.Equal(t, []any{2.0, 1.0}, rates(0, "grind"))
		require.Equal(t, []any{0.2, 0.0}, rates(0, "grind.retry"))
		require.Equal(t, []any{0.0, 0.0}, rates(0, "bake"), "it did nothing")
		require.Nil(t, rates(0, "of another version"))
		require.Equal(t, []any{0.0, 0.0}, rates(59, "grind"))
		for step := 1; step < 59; step++ {
			require.Nil(t, past[step].Work.Routes, "nobody has told anything, which is not 0")
		}
	})
}

// historyOver is after the beginning of a step, and after the time that a late clock has.
const historyOver = 15*time.Second*100 + 3*time.Second

func TestAHistoryThatNobodyKeeps(t *testing.T) {
	t.Parallel()
	past, err := pastOf(t, nil)
	require.NoError(t, err)
	require.Nil(t, past)
	_, err = pastOf(t, func() (map[int64]map[string]operate.Handled, error) { return nil, errors.New("refused") })
	require.EqualError(t, err, "refused")
	_, err = pastOf(t, func() (map[int64]map[string]operate.Handled, error) { panic("no client") })
	require.ErrorContains(t, err, "no client")
}
