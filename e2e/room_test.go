package e2e

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/token"
)

// roomsOf are the processes and rooms on one Redis.
type roomsOf struct {
	t     *testing.T
	addr  string
	key   string // file; brokers share it
	rooms *room.Store
}

// newRooms returns the rooms on a Redis. Their times are those of a process without other settings.
func newRooms(t *testing.T, addr string) *roomsOf {
	t.Helper()
	config := redis.DefaultClientConfig()
	config.Addrs = []string{addr}
	server := redis.New().Server(&config)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	key := filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, token.CreateKey(key))
	return &roomsOf{t: t, addr: addr, key: key, rooms: room.New(server, room.Options{
		PromoteInterval: 200 * time.Millisecond, PromoteBatch: 100, TokenTTL: 5 * time.Minute, ReadyTTL: 2 * time.Minute,
		Grace: 2 * time.Minute, SeenInterval: time.Second, ClearAfter: time.Hour, MaxEvents: 100,
	})}
}

// start starts a process with both roles. settings are more lines of plugins.waitingroom.
func (r *roomsOf) start(name string, settings ...string) *roomProcess {
	r.t.Helper()
	return r.startWith(nil, name, settings...)
}

// startWith is start with settings of other plugins, in the form of the environment.
func (r *roomsOf) startWith(env []string, name string, settings ...string) *roomProcess {
	r.t.Helper()
	p, err := newRoomProcess(r.t.TempDir(), r.addr, r.key, name, "broker, dispatcher", append(settings, "unknown_events: refuse")...)
	require.NoError(r.t, err)
	p.t, p.program, p.probe, p.env = r.t, binary(r.t), "/events/none/tickets/waiting/status", append([]string{"MILLRACE__LOG__LEVEL=debug"}, env...)
	r.t.Cleanup(p.kill)
	p.start()
	return p
}

// change changes a room.
func (r *roomsOf) change(event string, c room.Change) {
	r.t.Helper()
	c.By, c.Why = "test", "test"
	_, err := r.rooms.Control(r.t.Context(), event, c)
	require.NoError(r.t, err)
}

// open opens a room with 10 seats.
func (r *roomsOf) open(event string, concurrency int64) {
	r.t.Helper()
	seats := int64(10)
	r.change(event, room.Change{Verb: room.Open, Capacity: &seats, Concurrency: &concurrency})
}

// place returns the place of a user.
func (r *roomsOf) place(event, user string) room.Place {
	r.t.Helper()
	p, err := r.rooms.Status(r.t.Context(), event, user)
	require.NoError(r.t, err)
	return p
}
