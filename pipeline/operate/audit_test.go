package operate_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// numbered is a log with the changes n … 1, of which every tenth is by ann.
func numbered(n int64) func(context.Context, operate.AuditFilter, int) ([]operate.Change, error) {
	return func(_ context.Context, f operate.AuditFilter, most int) (changes []operate.Change, err error) {
		before, err := f.RowBefore()
		for i := min(n, before-1); i > 0 && len(changes) < most; i-- {
			who := "bob"
			if i%10 == 0 {
				who = "Ann (console, operator)"
			}
			changes = append(changes, operate.Change{ID: strconv.FormatInt(i, 10), Who: who, Action: "replay", Subject: "letter " + strconv.FormatInt(i, 10)})
		}
		return changes, err
	}
}

func ids(changes []operate.Change) (ids []string) {
	for _, c := range changes {
		ids = append(ids, c.ID)
	}
	return ids
}

// Pages of a log have each change that the filter selects once, the newest first, whatever lies between them.
func TestFilterAuditPagesThroughAll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		all         int64
		limit       int
		filter      operate.AuditFilter
		first, last string
		want        int
	}{
		"everything":              {1200, 50, operate.AuditFilter{}, "1200", "1", 1200},
		"a page and no more":      {50, 50, operate.AuditFilter{}, "50", "1", 50},
		"one person":              {1200, 50, operate.AuditFilter{Who: "ann"}, "1200", "10", 120},
		"one face":                {1200, 7, operate.AuditFilter{Who: "CONSOLE"}, "1200", "10", 120},
		"one of many":             {20_000, 50, operate.AuditFilter{Who: "ann", Subject: "letter 10000"}, "10000", "10000", 1},
		"more than is read once":  {20_000, 50, operate.AuditFilter{Subject: "letter 20000"}, "20000", "20000", 1},
		"an action and a subject": {300, 50, operate.AuditFilter{Action: "Replay", Subject: "letter 299"}, "299", "299", 1},
	} {
		var got []string
		pages := 0
		for {
			page, err := operate.FilterAudit(t.Context(), c.filter, c.limit, numbered(c.all))
			require.NoError(t, err)
			require.LessOrEqual(t, len(page.Changes), c.limit, name)
			got = append(got, ids(page.Changes)...)
			if pages++; page.Next == "" {
				break
			}
			require.NotEqual(t, c.filter.Before, page.Next, "%s: the next page is this one", name)
			c.filter.Before = page.Next
		}
		require.Len(t, got, c.want, name)
		require.Equal(t, []string{c.first, c.last}, []string{got[0], got[len(got)-1]}, name)
		if c.all == 50 {
			require.Equal(t, 1, pages, "an empty page followed")
		}
	}
	_, err := operate.FilterAudit(t.Context(), operate.AuditFilter{}, 5, func(context.Context, operate.AuditFilter, int) ([]operate.Change, error) {
		return nil, errors.New("refused")
	})
	require.EqualError(t, err, "refused")
	_, err = operate.FilterAudit(t.Context(), operate.AuditFilter{Before: "'; DROP"}, 5, numbered(5))
	require.ErrorContains(t, err, "before must be the id of a change")
}

// A filter that finds nothing reads a bounded number of changes.
func TestFilterAuditIsBounded(t *testing.T) {
	t.Parallel()
	read := 0
	page, err := operate.FilterAudit(t.Context(), operate.AuditFilter{Who: "carol"}, 50, func(ctx context.Context, f operate.AuditFilter, n int) ([]operate.Change, error) {
		changes, err := numbered(1_000_000)(ctx, f, n)
		read += len(changes)
		return changes, err
	})
	require.NoError(t, err)
	require.Empty(t, page.Changes)
	require.Equal(t, 5000, read)
	require.Equal(t, "995001", page.Next)
}

func TestAuthors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]operate.Author{
		"ann (console, operator)": {Name: "ann", Face: operate.FaceConsole, Role: operate.Operator},
		"ann (API, admin)":        {Name: "ann", Face: operate.FaceAPI, Role: operate.Admin},
		"anonymous (console)":     {Name: "anonymous", Face: operate.FaceConsole},
		"ann@laptop":              {Name: "ann@laptop", Face: operate.FaceCommand},
		"ann (on call)":           {Name: "ann (on call)", Face: operate.FaceCommand},
		operate.Schedule:          {Name: "schedule"},
	} {
		require.Equal(t, want, operate.AuthorOf(text))
		require.Equal(t, text, want.String())
	}
	require.Equal(t, operate.Author{Name: "ann for bob", Face: operate.FaceAPI}, operate.AuthorOf("ann (api) for bob"), "the operations API of rooms")
}
