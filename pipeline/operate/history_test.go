package operate_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// chronicle is a mill with what its instances did.
type chronicle struct {
	mill
	read func() (map[int64]map[string]operate.Handled, int64, error)
}

func (c chronicle) Register(r *pipeline.Registry) error {
	if c.read != nil {
		r.Offer(historian{c})
	}
	return c.mill.Register(r)
}

type historian struct{ of chronicle }

func (h historian) ReadHistory(context.Context) (map[int64]map[string]operate.Handled, int64, error) {
	return h.of.read()
}

func pastOf(t *testing.T, read func() (map[int64]map[string]operate.Handled, int64, error)) (operate.History, error) {
	t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, chronicle{newMill(time.Now()), read})
	require.NoError(t, err)
	h, err := operate.ReadHistory(t.Context(), reg)
	if !h.Begin.IsZero() {
		all := operate.StatusOf(reg, nil, nil, operate.Work{})
		require.Len(t, h.Routes, len(all))
		for i := range all {
			require.Equal(t, all[i].Route, h.Routes[i].Route)
		}
	}
	return h, err
}

// A step that is over is known of all routes, or of none.
func TestTheHistoryOfRoutes(t *testing.T) {
	t.Parallel()
	const now = 1_000_000
	h, err := pastOf(t, func() (map[int64]map[string]operate.Handled, int64, error) {
		return map[int64]map[string]operate.Handled{
			now - 61: {"grind": {Done: 1000}}, // too old
			now - 60: {"grind": {Done: 30, Failed: 15}, "grind.retry": {Done: 3}, "of another version": {Done: 7}},
			now - 1:  {},
			now:      {"grind": {Done: 1000}}, // it is not over
		}, now, nil
	})
	require.NoError(t, err)
	require.Equal(t, time.Unix((now-60)*15, 0).UTC(), h.Begin)
	require.Equal(t, "grind", h.Routes[0].Route)
	for i, r := range h.Routes {
		require.Len(t, r.Done, operate.HistorySteps)
		require.Len(t, r.Failed, operate.HistorySteps)
		done, failed := 0.0, 0.0
		if i == 0 {
			done, failed = 2.2, 1
		}
		require.InDelta(t, done, *r.Done[0], 1e-9, "with its retries")
		require.InDelta(t, failed, *r.Failed[0], 1e-9)
		require.Zero(t, *r.Done[59])
		require.Zero(t, *r.Failed[59])
		for step := 1; step < 59; step++ {
			require.Nil(t, r.Done[step], "nobody has told anything, which is not 0")
			require.Nil(t, r.Failed[step])
		}
	}
}

func TestAHistoryThatNobodyKeeps(t *testing.T) {
	t.Parallel()
	h, err := pastOf(t, nil)
	require.NoError(t, err)
	require.Zero(t, h)
	_, err = pastOf(t, func() (map[int64]map[string]operate.Handled, int64, error) { return nil, 0, errors.New("refused") })
	require.EqualError(t, err, "refused")
	_, err = pastOf(t, func() (map[int64]map[string]operate.Handled, int64, error) { panic("no client") })
	require.ErrorContains(t, err, "no client")
}
