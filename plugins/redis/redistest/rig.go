package redistest

import (
	"context"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// Group is the consumer group of a Rig.
const Group = "g"

// Rig is one stream with a group, and what is needed to see what a reader does to it.
type Rig struct {
	T      testing.TB
	Server Server
	Client goredis.UniversalClient
	Stream string
}

// NewRig creates stream and group.
func NewRig(t testing.TB, s Server) *Rig {
	t.Helper()
	c := s.Client(t)
	r := &Rig{T: t, Server: s, Client: c, Stream: Stream(t, c)}
	r.CreateGroup()
	return r
}

// CreateGroup creates the group, and the stream if it does not exist.
func (r *Rig) CreateGroup() {
	r.T.Helper()
	require.NoError(r.T, r.Client.XGroupCreateMkStream(context.Background(), r.Stream, Group, "0").Err())
}

// Add appends n entries with the payloads first, first+1, and so on. It returns their ids.
func (r *Rig) Add(first, n int) []string {
	r.T.Helper()
	ids := make([]string, n)
	for i := range n {
		payload := fmt.Sprint(first + i)
		e := entry.Entry{Key: payload, UUID: "uuid-" + payload, Message: []byte(payload)}
		id, err := r.Client.XAdd(context.Background(), &goredis.XAddArgs{Stream: r.Stream, Values: e.Values()}).Result()
		require.NoError(r.T, err)
		ids[i] = id
	}
	return ids
}

// Pending returns the pending entries of the group.
func (r *Rig) Pending() []goredis.XPendingExt {
	r.T.Helper()
	p, err := r.Client.XPendingExt(context.Background(), &goredis.XPendingExtArgs{Stream: r.Stream, Group: Group, Start: "-", End: "+", Count: 1000}).Result()
	require.NoError(r.T, err)
	return p
}

// Consumers returns the consumers of the group.
func (r *Rig) Consumers() (names []string) {
	r.T.Helper()
	cs, err := r.Client.XInfoConsumers(context.Background(), r.Stream, Group).Result()
	require.NoError(r.T, err)
	for _, c := range cs {
		names = append(names, c.Name)
	}
	return names
}

// NothingPending waits until the group has no pending entry.
func (r *Rig) NothingPending() {
	r.T.Helper()
	require.Eventually(r.T, func() bool { return len(r.Pending()) == 0 }, Patience, 5*time.Millisecond, "entries stay pending")
}
