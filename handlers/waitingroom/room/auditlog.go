package room

import (
	"context"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// AuditRooms is the number of rooms that RecentAudit reads at most.
const AuditRooms = 100

// RecentAudit returns the changes of the rooms that exist, the newest first. The audit of a room stays when its
// keys are removed, and is read if the filter's subject is the event.
func (r *Store) RecentAudit(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
	events, err := r.Events(ctx)
	if err != nil {
		return operate.AuditPage{}, err
	}
	if f.Subject != "" {
		events = slices.DeleteFunc(events, func(event string) bool {
			return !strings.Contains(strings.ToLower(event), strings.ToLower(f.Subject))
		})
		if ValidEvent(f.Subject) && !slices.Contains(events, f.Subject) {
			events = append([]string{f.Subject}, events...)
		}
	}
	streams := map[string]string{}
	for _, event := range events[:min(len(events), AuditRooms)] {
		streams[event] = AuditStream(event)
	}
	return operate.FilterAudit(ctx, f, limit, func(ctx context.Context, from operate.AuditFilter, n int) ([]operate.Change, error) {
		entries, err := r.server.Newest(ctx, streams, from.Before, n)
		var changes []operate.Change
		for _, e := range entries {
			changes = append(changes, operate.Change{
				ID: e.Place(), At: e.At(), Who: e.Fields["by"], Why: e.Fields["why"], Action: e.Fields["verb"], Subject: e.Of, Outcome: "done", Detail: e.Fields["detail"],
			})
		}
		return changes, err
	})
}

// AuditStream returns the stream of what operators did with an event.
func AuditStream(event string) string { return "ROOM_AUDIT:{" + event + "}" }
