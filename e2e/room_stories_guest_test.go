package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

// received is a stream event.
type received struct {
	name string
	said
}

// roomGuest is one tab of a user. It stays at one broker.
type roomGuest struct {
	s    *roomStory
	name string
	stop func() // closes the connection
	ends chan error

	mu     sync.Mutex
	events []received
	last   string // id
}

// tab opens the stream of a user. last is the Last-Event-ID, if there is one.
func (s *roomStory) tab(user string, broker int, last string) *roomGuest {
	ctx, cancel := context.WithCancel(s.t.Context())
	g := &roomGuest{s: s, name: user, last: last, ends: make(chan error, 1)}
	ended := make(chan struct{})
	g.stop = func() { cancel(); <-ended }
	s.t.Cleanup(g.stop)
	client := ssetest.Client{
		URL: s.waiting(broker), HTTP: &http.Client{Transport: direct}, Header: http.Header{userHeader: {s.user(user)}}, LastEventID: last,
		Retry: func(time.Duration) time.Duration { return 100 * time.Millisecond }, Event: g.event,
	}
	go func() {
		defer close(ended)
		g.ends <- client.Run(ctx)
	}()
	return g
}

// enter is tab for a user who enters.
func (s *roomStory) enter(user string, broker int) *roomGuest {
	s.t.Helper()
	g := s.tab(user, broker, "")
	require.Equal(s.t, s.event, g.await("connected", func(received) bool { return true }).Event)
	return g
}

// openForTwo opens the room with these fields. Two users enter, at different brokers.
func (s *roomStory) openForTwo(fields string) (ann, ben *roomGuest) {
	s.t.Helper()
	s.change("open", fields)
	return s.enter("ann", 0), s.enter("ben", 1)
}

var errRoomClosed = errors.New("closed")

func (g *roomGuest) event(e ssetest.Event) error {
	one := received{name: e.Name}
	if err := json.NewDecoder(bytes.NewBufferString(e.Data)).Decode(&one.said); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events, g.last = append(g.events, one), cmp.Or(e.ID, g.last)
	if e.Name == "closed" && one.Reason != "draining" {
		return errRoomClosed
	}
	return nil
}

// all returns the events with a name, or all of them.
func (g *roomGuest) all(name string) []received {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.events), func(e received) bool { return name != "" && e.name != name })
}

func (g *roomGuest) cursor() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// await waits for an event, and returns the newest that matches.
func (g *roomGuest) await(name string, match func(received) bool) (found received) {
	g.s.t.Helper()
	g.s.await(g.name+" receives "+name, func() error {
		list := g.all(name)
		for _, e := range slices.Backward(list) {
			if match(e) {
				found = e
				return nil
			}
		}
		return fmt.Errorf("received %+v", g.all(""))
	})
	return found
}

// stands waits until the user sees this number of users ahead, of this number of waiting users.
func (g *roomGuest) stands(ahead, waiting int64) {
	g.s.t.Helper()
	g.await("position", func(e received) bool {
		return e.Ahead != nil && *e.Ahead == ahead && *e.Position == ahead+1 && e.Waiting == waiting
	})
}

// promoted waits for the token.
func (g *roomGuest) promoted() received {
	g.s.t.Helper()
	return g.await("promoted", func(e received) bool { return e.Token != "" })
}

// closed waits for the end of the stream with a reason.
func (g *roomGuest) closed(reason string) {
	g.s.t.Helper()
	g.await("closed", func(e received) bool { return e.Reason == reason })
}
