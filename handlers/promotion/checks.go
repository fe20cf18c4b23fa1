package promotion

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/reach"
)

// checkKey is an idempotency key of no charge, because no type has its name.
const checkKey = "DOCTOR:1:1"

// Examinations implements operate.Examined: the Money API with its servers, and how long it has to know a key. The tables are
// examined by their schema.
func (p *Plugin) Examinations() []operate.Examination {
	cfg := p.config.MoneyAPI
	keys := operate.Examination{Place: "payouts", Open: func(context.Context) ([]operate.Examine, func(), error) {
		return []operate.Examine{{What: "keys", Read: p.keyAge}}, nil, nil
	}}
	const api = "money-api"
	var servers []operate.Examination
	if !cfg.Simulator.Enabled {
		servers = reach.Servers{Name: api, URL: cfg.URL, Client: cfg.Config.Config}.Examinations()
	}
	return append(servers, keys, operate.Examination{Place: api, Open: func(context.Context) ([]operate.Examine, func(), error) {
		if cfg.Simulator.Enabled {
			return []operate.Examine{{What: "simulator", Read: func(context.Context) ([]operate.Check, error) {
				return []operate.Check{{
					Level: operate.Warn, Text: "the simulator inside of the service pays, so no money moves",
					Remedy: "set plugins.promotion.money_api.simulator.enabled to false and name the url of the Money API",
				}}, nil
			}}}, nil, nil
		}
		client, err := money.New(cfg.Config, nil)
		if err != nil {
			return nil, nil, err
		}
		return []operate.Examine{{What: "lookup", Read: func(ctx context.Context) ([]operate.Check, error) {
			check, err := lookupCheck(client.Lookup(ctx, checkKey), cfg.URL)
			if err != nil {
				return nil, err
			}
			return []operate.Check{check}, nil
		}}}, func() { _ = client.Close() }, nil
	}})
}

// keyAge warns when a key ends before the last retry, because a later request is not sent without a lookup.
func (p *Plugin) keyAge(context.Context) ([]operate.Check, error) {
	c := p.config.Ledger
	longest := c.Retry.Sum(c.MaxRetries) + p.config.MoneyAPI.CallTimeout*time.Duration(c.MaxRetries)
	if c.IdempotencyTTL > longest {
		return nil, nil
	}
	return []operate.Check{{
		Level: operate.Warn,
		Text: fmt.Sprintf("ledger.idempotency_ttl is %s, and the %d retries may last %s (ledger.retry, money_api.call_timeout): later ones wait for a lookup",
			c.IdempotencyTTL, c.MaxRetries, longest),
		Remedy: "raise plugins.promotion.ledger.idempotency_ttl if the Money API keeps its keys for longer, or lower max_retries or retry.max",
	}}, nil
}

// lookupCheck judges the answer to the lookup of a charge that does not exist, which changes nothing.
func lookupCheck(a money.Answer, url string) (operate.Check, error) {
	c := operate.Check{Level: operate.OK}
	switch a.Class {
	case money.NoCharge:
		c.Text = fmt.Sprintf("%s answers that the charge %s does not exist", url, checkKey)
	case money.NotSent:
		return c, fmt.Errorf("%w: %s: %s", pipeline.ErrUnavailable, url, a.Text)
	case money.Misconfigured:
		c = operate.Check{
			Level: operate.Fail, Text: fmt.Sprintf("%s refuses the credential or the address: %s", url, a.Text),
			Remedy: "correct plugins.promotion.money_api.url, token or oauth2", Runbook: "configs/RUNBOOK.md, MillraceFarSideMisconfigured",
		}
	case money.Throttled, money.Retry:
		c = operate.Check{
			Level: operate.Warn, Text: fmt.Sprintf("%s answers that it takes no calls at this moment: %s", url, a.Text),
			Remedy: "look again, and ask who runs the API about its limits", Runbook: "configs/RUNBOOK.md, MillraceFarSideBreakerOpen",
		}
	default:
		if a.Status == 0 {
			return c, fmt.Errorf("%w: %s: %s", pipeline.ErrUnavailable, url, a.Text)
		}
		c = operate.Check{
			Level: operate.Fail, Text: fmt.Sprintf("%s does not answer the lookup of a charge as openapi.yaml says (%s): %s", url, a.Class, a.Text),
			Remedy: "look whether a proxy answers in its place, and whether the url has the prefix of the API", Runbook: "configs/RUNBOOK.md, MillraceFarSideUncertain",
		}
	}
	return c, nil
}

var _ operate.Examined = (*Plugin)(nil)
