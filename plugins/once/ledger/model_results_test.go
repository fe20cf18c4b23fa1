package ledger

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// endOf is one end of an effect, of which a replay makes another one.
type endOf struct {
	key Key
	at  time.Time
}

func (r Result) end() endOf { return endOf{r.Key, r.SettledAt} }

// settled notes that an effect has a result, if its kind publishes any.
func (m *model) settled(k Key, row rules.Row) {
	if graces[k.Kind] > 0 {
		r := Result{Key: k, State: row.State, SettledAt: row.SettledAt, Attempts: row.Attempts, Receipt: row.Receipt}
		m.results[r.end()] = r
	}
}

// relay publishes results. Those that fail stay, and so do those that another instance has taken.
func (m *model) relay(l *Ledger) {
	kind := []string{"invoice", "mail"}[m.rnd.IntN(2)]
	passed := 0
	var good []Result
	relayed, err := l.RelayResults(m.t.Context(), kind, []int{1, 100}[m.rnd.IntN(2)], func(_ context.Context, all []Result) error {
		errs := make([]error, len(all))
		for i, r := range all {
			want, ok := m.results[r.end()]
			require.True(m.t, ok, "%s was not settled at %s, or its result was published before\n%s", r.text(), r.SettledAt, m)
			require.Equal(m.t, want, Result{Key: r.Key, State: r.State, SettledAt: r.SettledAt, Attempts: r.Attempts, Receipt: r.Receipt}, m)
			row := m.look(l).rows[r.Key]
			require.Equal(m.t, []any{m.parts[r.Key], row.AcceptedAt, string(row.payload)}, []any{r.Part, r.AcceptedAt, string(r.Payload)}, m)
			require.Equal(m.t, r.State == rules.Failed || r.State == rules.Unknown, r.Class != "", m)
			if m.rnd.IntN(4) == 0 {
				errs[i] = errors.New("refused")
			}
		}
		passed++
		if m.rnd.IntN(4) == 0 {
			return errors.New("away")
		}
		for i, r := range all {
			if errs[i] == nil {
				good = append(good, r)
			}
		}
		return pipeline.PublishError(errs)
	})
	require.True(m.t, err == nil || passed > 0, "%v\n%s", err, m)
	require.Equal(m.t, len(good), relayed.Published, m)
	require.LessOrEqual(m.t, relayed.Published, relayed.Taken, m)
	m.seen = nil
	for _, r := range good {
		delete(m.results, r.end())
	}
	require.False(m.t, slices.ContainsFunc(good, func(r Result) bool { return r.Kind != kind }), m)
}
