package cli

import (
	"cmp"
	"context"
	"strings"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
)

// RecentResets returns the resets of jobs of all domains, the newest first. shards is the server of the shards.
func (s Settings) RecentResets(ctx context.Context, shards *redis.Server, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
	streams := map[string]string{}
	for _, d := range s.Domains {
		name, _, _ := strings.Cut(d.Prefix, ":")
		streams[name] = auditStream(d)
	}
	return operate.FilterAudit(ctx, f, limit, func(ctx context.Context, from operate.AuditFilter, n int) ([]operate.Change, error) {
		entries, err := shards.Newest(ctx, streams, from.Before, n)
		var changes []operate.Change
		for _, e := range entries {
			changes = append(changes, operate.Change{
				ID: e.Place(), At: e.At(), Who: e.Fields["who"], Why: e.Fields["why"], Action: e.Fields["verb"], Subject: e.Of + "/" + e.Fields["job"],
				Outcome: cmp.Or(e.Fields["outcome"], operate.OutcomeBegun),
			})
		}
		return changes, err
	})
}
