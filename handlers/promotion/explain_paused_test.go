package promotion

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// pausing keeps the order that a route is paused.
type pausing string

func (pausing) Name() string                          { return "pausing" }
func (p pausing) Register(r *pipeline.Registry) error { r.Offer(p); return nil }

func (p pausing) ReadPauses(context.Context, []pipeline.Route) ([]operate.Condition, error) {
	return []operate.Condition{{Route: string(p), Check: operate.Check{Text: "paused since noon, by ann, because: ticket 7"}}}, nil
}

// A payout that is not in the ledger is not lost: its route is paused, and who asks learns by whom.
func TestExplainKnowsThatTheRouteIsPaused(t *testing.T) {
	t.Parallel()
	config := ledger.DefaultConfig()
	config.DSN = setting.NewSecret("sqlite:" + filepath.Join(t.TempDir(), "ledger.db"))
	l, err := ledger.Open(t.Context(), config, ledger.Options{Instance: "a", Lease: time.Minute}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	require.NoError(t, l.Migrate(t.Context()))
	p := &Plugin{config: DefaultConfig()}
	p.run = newResources(&p.config)
	p.run.ledger = l
	p.run.opened.Store(l)
	for route, want := range map[string]string{
		"promotion.point.accept":   "may have had the payout before. The route promotion.point.accept, which accepts it, is paused since noon, by ann, because: ticket 7",
		"promotion.voucher.accept": "may have had the payout before",
	} {
		p.registry, err = pipeline.NewRegistry(pipeline.Env{}, pausing(route))
		require.NoError(t, err)
		_, err := p.campaigns().Explain(t.Context(), payouts.Key{Type: "POINT", Promotion: 1, Target: 2}, false)
		require.True(t, campaign.IsNotFound(err))
		require.Regexp(t, want+"$", err.Error())
	}
}
