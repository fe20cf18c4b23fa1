package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
)

// slowShop is a plugin whose panels read a server that does not answer before free is closed.
type slowShop struct {
	free    chan struct{}
	running atomic.Int64
}

func (*slowShop) Name() string                          { return "slow-shop" }
func (s *slowShop) Register(r *pipeline.Registry) error { r.Offer(s); return nil }

func (s *slowShop) Console() []console.Page {
	load := func(ctx context.Context, q console.Query) (console.Block, error) {
		s.running.Add(1)
		defer s.running.Add(-1)
		select {
		case <-s.free:
		case <-ctx.Done():
		}
		return console.Text(fmt.Sprintf("read of=%q x=%q", q.Text("of"), q.Text("x"))), nil
	}
	var asked []console.Panel
	for i := range 2 * maxAsked {
		asked = append(asked, console.Panel{Name: fmt.Sprint("asked-", i), Title: "Asked", Asked: true, Values: []string{"of"}, Load: load})
	}
	return []console.Page{{Path: "asked", Title: "Asked", Panels: asked}, {Path: "slow", Title: "Slow", Panels: []console.Panel{{Name: "slow", Title: "Slow", Values: []string{"of"}, Load: load}}}}
}

// leave sends a request of a person who does not wait for the answer.
func (v *visited) leave(method, path, body, person string) {
	ctx, cancel := context.WithCancel(v.t.Context())
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	r.Header.Set("X-User", person)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	go v.server.http.Handler.ServeHTTP(httptest.NewRecorder(), r)
	synctest.Wait()
	cancel()
	synctest.Wait()
}

// A read goes on when its reader has gone, so a person who comes again and again with another address must not have the
// process open connections each time.
func TestWhatIsAskedRunsOnceAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shop := &slowShop{free: make(chan struct{})}
		v := startVisited(t, shop)
		for _, query := range []string{"", "?x=1", "?x=2", "?of=1", "?of=2"} {
			v.leave(http.MethodPost, "/api/v1/asked"+query, "panel=asked-0", "vic")
			require.EqualValues(t, 1, shop.running.Load(), query)
		}
		for i := range 2 * maxAsked {
			v.leave(http.MethodPost, "/asked", fmt.Sprint("panel=asked-", i), "vic")
		}
		require.EqualValues(t, maxAsked, shop.running.Load())
		close(shop.free)
		synctest.Wait()
		require.Zero(t, shop.running.Load())
		require.Empty(t, v.server.loads.taken)
		require.NoError(t, v.server.Stop(t.Context()))
	})
}

// What one person reads takes nothing from others, and a value that a panel does not read is no read of its own.
func TestAPersonReadsSoMuchAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shop := &slowShop{free: make(chan struct{})}
		v := startVisited(t, shop)
		for i := range 20 {
			v.leave(http.MethodGet, fmt.Sprint("/slow?x=", i), "", "vic")
		}
		require.EqualValues(t, 1, shop.running.Load())
		for i := range 20 {
			v.leave(http.MethodGet, fmt.Sprint("/slow?of=", i), "", "vic")
		}
		require.EqualValues(t, maxOfPerson, shop.running.Load())
		require.Contains(t, v.get("/slow?of=more", "vic", false), "too many of your panels")
		require.Contains(t, v.get("/slow?of=more", "val", false), "No answer within 500ms")
		require.EqualValues(t, maxOfPerson+1, shop.running.Load())
		close(shop.free)
		synctest.Wait()
		require.Contains(t, v.get("/slow?of=another&x=1", "vic", false), `read of=&#34;another&#34; x=&#34;&#34;`, "a value that is not declared")
		require.NoError(t, v.server.Stop(t.Context()))
	})
}
