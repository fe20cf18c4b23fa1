package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
)

// note is what this instance writes about a promotion into its stream's meta, for campaign status.
func (r *resources) note(t payouts.Type, stream string) json.RawMessage {
	p, err := payouts.PromotionOfStream(t, stream)
	if err != nil {
		return nil
	}
	n := campaign.Note{Client: r.clientState()}
	if s, known := r.recent.Status(p); known {
		n.Recent = &s
	}
	text, _ := json.Marshal(n) // numbers and texts: can't fail
	return text
}

// clientState returns the state of this instance's client of the Money API. Without one there is no breaker, so it is closed.
func (r *resources) clientState() campaign.Client {
	client := r.client.Load()
	if client == nil {
		return campaign.Client{Breaker: campaign.BreakerClosed}
	}
	now := client.Reading()
	since := time.Time{}
	if at := r.since.Load(); at != nil {
		since = *at
	}
	return campaign.Client{Since: since, Breaker: now.Breaker, Throttled: now.Throttled > 0, Pace: now.Pace, Misconfigured: now.Misconfigured, Limit: now.Slots}
}

// awayLimit bounds the wait of a command for a server that it can do without. It is less than what a command waits
// for its servers by default.
const awayLimit = 2 * time.Second

// mayBeAway starts a server for a command that says what it knows without it.
func (r *resources) mayBeAway(s pipeline.Service) pipeline.Service {
	return &service{
		start: func(ctx context.Context) error {
			r.redisAway.Store(nil)
			ctx, cancel := context.WithTimeout(ctx, awayLimit)
			defer cancel()
			err := s.Start(ctx)
			if errors.Is(err, pipeline.ErrUnavailable) {
				r.redisAway.Store(&err)
				return nil
			}
			return err
		},
		stop: func(ctx context.Context) error { return s.Stop(ctx) },
	}
}
