package console_test

import (
	"context"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// valve is a plugin whose page and conditions show what was measured, which happens hardly ever.
type valve struct{ closed, measured *atomic.Bool }

func (valve) Name() string                          { return "valve" }
func (v valve) Register(r *pipeline.Registry) error { r.Offer(v); return nil }
func (v valve) Remeasure(context.Context)           { v.measured.Store(v.closed.Load()) }

func (v valve) Conditions() []operate.Condition {
	if !v.measured.Load() {
		return nil
	}
	return []operate.Condition{{Check: operate.Check{Name: "valve", Level: operate.Warn, Text: "closed by an operator"}}}
}

func (v valve) Console() []pages.Page {
	return []pages.Page{{Path: "valve", Title: "Valve", Panels: []pages.Panel{{Name: "valve", Title: "Valve", Load: func(context.Context, pages.Query) (pages.Block, error) {
		if v.measured.Load() {
			return pages.Text("the valve is closed"), nil
		}
		return pages.Text("the valve is open"), nil
	}}}}}
}

func (v valve) Operations() operate.Operations {
	return operate.Operations{Actions: []operate.Action{{
		About: operate.About{Name: "valve close", Short: "Close it", Examples: []string{"valve close"}}, Danger: operate.Safe, Role: operate.Operator,
		Preview: func(context.Context, *pipeline.Registry, operate.Input) (operate.Answer, error) {
			return operate.Answer{}, nil
		},
		Do: func(context.Context, *pipeline.Registry, operate.Input, operate.Use) (operate.Answer, error) {
			v.closed.Store(true)
			return operate.Answer{Lines: []string{"Closed."}}, nil
		},
	}}}
}

// The pages that follow an action show what it did: it is measured at once, and no page is that of a moment ago.
func TestPagesShowAnActionAtOnce(t *testing.T) {
	t.Parallel()
	v := valve{new(atomic.Bool), new(atomic.Bool)}
	r := start(t, nil, v)
	require.Contains(t, r.get("/valve"), "the valve is open")
	require.NotContains(t, r.get("/"), "closed by an operator")
	confirm, _ := r.previewed("/actions/valve/close", url.Values{})
	answer, text := r.post("/actions/valve/close", confirm)
	require.Equal(t, http.StatusSeeOther, answer.StatusCode, text)
	require.Contains(t, r.get(answer.Header.Get("Location")), "Closed.")
	require.Contains(t, r.get("/valve"), "the valve is closed")
	require.Contains(t, r.get("/"), "closed by an operator")
}
