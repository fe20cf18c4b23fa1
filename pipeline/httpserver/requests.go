package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/pipeline/loop"
)

const (
	// defaultPatience is the time that clients have during a stop for what they are late with.
	defaultPatience = 2 * time.Second
	stopPoll        = 20 * time.Millisecond
	closeTime       = time.Second // for a handler to see that its connection was closed
	namedRequests   = 3           // in the error of a stop
)

// Requests knows which requests of a server are in their handlers, and which of these wait for
// their clients. Its zero value is ready. Set the fields before the server starts.
type Requests struct {
	// WriteStall is the longest time without progress of a write. It is for a server whose answers
	// may take any time. Zero: no limit.
	WriteStall time.Duration
	// Patience is the time that clients have during a stop to send or to read what they are late
	// with. Zero: 2s.
	Patience time.Duration

	mu    sync.Mutex
	open  map[*request]struct{}
	ended int // requests whose handlers have returned
}

// Handler returns h with the tracking of its requests. It is the handler of the server.
func (rs *Requests) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := &request{ResponseWriter: w, name: r.Method + " " + r.URL.Path, stall: rs.WriteStall}
		rs.enter(q)
		defer rs.leave(q)
		if r.Body != nil && r.Body != http.NoBody {
			// net/http must find its own body in its request.
			copied := *r
			copied.Body, r = &body{r.Body, q}, &copied
		}
		h.ServeHTTP(q, r)
	})
}

func (rs *Requests) enter(q *request) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.open == nil {
		rs.open = map[*request]struct{}{}
	}
	rs.open[q] = struct{}{}
}

func (rs *Requests) leave(q *request) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.open, q)
	rs.ended++
}

// count returns the number of requests in their handlers, and the names of those that do not wait
// for their clients.
func (rs *Requests) count() (open int, working []string) {
	open, working, _ = rs.look()
	return open, working
}

// look is count, with the number of requests whose handlers have returned.
func (rs *Requests) look() (open int, working []string, ended int) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for q := range rs.open {
		if q.waiting.Load() == 0 {
			working = append(working, q.name)
		}
	}
	return len(rs.open), working, rs.ended
}

// Stop ends the server: it accepts nothing more, and waits for the requests in progress. Once none
// of them is worked on, clients that have not sent their request or read their answer within
// Patience are disconnected, which is no error. When ctx ends, all connections are closed; the error
// then names the requests whose handlers were still at work.
func (rs *Requests) Stop(ctx context.Context, s *http.Server) error {
	waiting, end := context.WithCancel(ctx)
	defer end()
	var watch sync.WaitGroup
	watch.Go(func() {
		rs.awaitClients(waiting)
		end()
	})
	err := s.Shutdown(waiting)
	end()
	watch.Wait()
	if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	late := ctx.Err()
	_, working := rs.count()
	_ = s.Close() // of connections that the clients may have closed
	if late != nil && len(working) > 0 {
		slices.Sort(working)
		if len(working) > namedRequests {
			working = append(working[:namedRequests], "…")
		}
		return fmt.Errorf("requests have not ended: %s: %w", strings.Join(working, ", "), late)
	}
	// Handlers that waited for their clients see that the connections are closed.
	closed, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	for open, _ := rs.count(); open > 0; open, _ = rs.count() {
		if !loop.Sleep(closed, stopPoll) {
			return fmt.Errorf("%d requests have not ended after their connections were closed", open)
		}
	}
	return nil
}

// awaitClients returns after Patience, as soon as two looks in a row find no handler at work and none
// that has returned in between. One look is not enough, because net/http sends the rest of an answer
// after its handler, and a handler that writes its answer in parts may just be in a write.
func (rs *Requests) awaitClients(ctx context.Context) {
	patience := rs.Patience
	if patience == 0 {
		patience = defaultPatience
	}
	const none = -1
	for quiet := none; loop.Sleep(ctx, patience); patience = stopPoll {
		_, working, ended := rs.look()
		switch {
		case len(working) > 0:
			quiet = none
		case quiet == ended:
			return
		default:
			quiet = ended
		}
	}
}

// request is a request in its handler. http.ResponseController finds the writer in it.
type request struct {
	http.ResponseWriter
	name    string
	stall   time.Duration
	waiting atomic.Int32 // calls that wait for the client
}

// Unwrap is for http.ResponseController.
func (q *request) Unwrap() http.ResponseWriter { return q.ResponseWriter }

// Write implements http.ResponseWriter.
func (q *request) Write(b []byte) (int, error) {
	q.begin()
	defer q.end()
	return q.ResponseWriter.Write(b)
}

// FlushError is for http.ResponseController.
func (q *request) FlushError() error {
	q.begin()
	defer q.end()
	return http.NewResponseController(q.ResponseWriter).Flush()
}

func (q *request) begin() {
	if q.stall > 0 {
		_ = http.NewResponseController(q.ResponseWriter).SetWriteDeadline(time.Now().Add(q.stall)) // net/http supports it
	}
	q.waiting.Add(1)
}

func (q *request) end() { q.waiting.Add(-1) }

// body is the body of a request.
type body struct {
	io.ReadCloser
	of *request
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.of.waiting.Add(1)
	defer b.of.end()
	return b.ReadCloser.Read(p)
}
