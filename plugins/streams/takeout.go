package streams

import "context"

// TakeOut takes the stream of id out of service for all instances, if it has been drained for
// Config.IdleTimeout, and reports whether it is gone. The keeper does it at its visits; this is for tools and
// for tests that choose the moment.
func (m *Manager) TakeOut(ctx context.Context, id int64) (gone bool) {
	return m.takeOut(ctx, id) == takenClean
}
