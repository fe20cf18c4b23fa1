package promotion

import "github.com/millrace-io/millrace/handlers/promotion/campaign"

// Campaigns is what pages and commands use.
func (p *Plugin) Campaigns() campaign.Env { return p.campaigns() }
