package streams

import "context"

// Decommission takes the stream of id out of service for all instances, if it has been drained for
// Config.IdleTimeout, and reports whether it is gone. The control loop does it after its visits.
// This is for tests that choose the moment.
func (m *Manager) Decommission(ctx context.Context, id string) (gone bool) {
	return m.decommission(ctx, id) == decommissionedClean
}
