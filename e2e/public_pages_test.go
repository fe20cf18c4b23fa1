package e2e

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// Everybody can use the page of a job, in each of its states.
func TestThePageOfAJobIsAccessible(t *testing.T) {
	tier.Rest(t, tier.Router, tier.Web)
	t.Parallel()
	b := startBrowser(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	jobs := &jobsOf{t: t, addr: servers.RedisAddr(), client: goredis.NewClient(&goredis.Options{Addr: servers.RedisAddr()})}
	t.Cleanup(func() { require.NoError(t, jobs.client.Close()) })
	s := startJobs(t, jobs.addr, "accessible")
	p := b.open(t, s.url+"/jobs/scan/seen/watch", desktop)
	p.says("Waiting for the first event")
	p.accessible("a job without events")
	jobs.add("seen", 1, 4)
	p.shows(4)
	p.accessible("a job that runs")
	jobs.add("seen", 5, 10)
	p.says("The job is done.")
	p.accessible("a job that is done")
	failed := b.open(t, s.url+"/jobs/scan/failed/watch", desktop)
	jobs.event("failed", "stage", "error", "seq", 1, "timestamp", time.Now().UTC().Format(time.RFC3339Nano))
	failed.says("The job has failed.")
	failed.accessible("a job that has failed")
}

// Everybody can use the page of a waiting room, from the opening to the end of a turn.
func TestThePageOfAWaitingRoomIsAccessible(t *testing.T) {
	tier.Rest(t, tier.Room, tier.Web)
	t.Parallel()
	b := startBrowser(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	rooms := newRooms(t, servers.RedisAddr())
	s := rooms.start("accessible")
	const event = "concert"
	rooms.open(event, 0)
	v := visitAt(t, b, desktop, s.url, event, "ann")
	v.says("You are next.")
	v.accessible("the next user")
	rooms.change(event, room.Change{Verb: room.Hold})
	v.matches("document.title", "^On hold · concert$")
	v.accessible("a room on hold")
	v.network.SetDown(true)
	v.says("Connection lost")
	v.accessible("a lost connection")
	v.network.SetDown(false)
	rooms.change(event, room.Change{Verb: room.Resume})
	one := int64(1)
	rooms.change(event, room.Change{Verb: room.Set, Concurrency: &one})
	v.says("It is your turn.")
	v.accessible("a turn")
	_, err = rooms.rooms.Finish(t.Context(), event, "ann", rooms.place(event, "ann").JTI, "", true)
	require.NoError(t, err)
	v.matches("document.title", "^Ended · concert$")
	v.accessible("the end of a turn")
}
