package broker

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

// Clients that poll an event read its table once per second together.
func TestClientsThatPollShareATable(t *testing.T) {
	t.Parallel()
	var shared tables
	var reads atomic.Int64
	read := func() (*room.Table, error) {
		return &room.Table{Tick: reads.Add(1)}, nil
	}
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() { _, _ = shared.get("a", start, read) })
	}
	clients.Wait()
	got, err := shared.get("a", start.Add(tableAge-1), read)
	require.NoError(t, err)
	require.EqualValues(t, 1, got.Tick)
	got, _ = shared.get("b", start, read)
	require.EqualValues(t, 2, got.Tick, "another event")
	got, _ = shared.get("a", start.Add(tableAge), read)
	require.EqualValues(t, 3, got.Tick)
	_, err = shared.get("c", start, func() (*room.Table, error) { return nil, errors.New("down") })
	require.Error(t, err)
	shared.clean(start.Add(tableAge))
	require.Len(t, shared.events, 1)
}
