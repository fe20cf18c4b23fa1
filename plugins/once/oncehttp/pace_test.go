package oncehttp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/slots"
	"github.com/millrace-io/millrace/plugins/once"
)

// limitedAPI is a far side with a limit of calls per second and room for a burst. It answers after a while.
type limitedAPI struct {
	perSecond, burst float64
	takes            time.Duration
	unfair           func(key string) bool // calls that it refuses whatever the rate is; may be nil

	mu       sync.Mutex
	tokens   float64
	at       time.Time
	answered int
	refused  int
}

func (a *limitedAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(a.takes / 2)
	defer time.Sleep(a.takes / 2)
	if a.allows(r.Header.Get("Idempotency-Key")) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"id":"in_1"}`))}, nil
	}
	return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}},
		Body: io.NopCloser(strings.NewReader(`{"code":"too_many"}`))}, nil
}

func newLimitedAPI(perSecond float64) *limitedAPI {
	return &limitedAPI{perSecond: perSecond, burst: max(1, perSecond/10), takes: 20 * time.Millisecond, at: time.Now()}
}

// allow sets another limit.
func (a *limitedAPI) allow(perSecond float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.perSecond, a.burst = perSecond, max(1, perSecond/10)
}

func (*limitedAPI) CloseIdleConnections() {}

func (a *limitedAPI) allows(key string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.tokens = min(a.burst, a.tokens+now.Sub(a.at).Seconds()*a.perSecond)
	a.at = now
	if a.tokens < 1 || a.unfair != nil && a.unfair(key) {
		a.refused++
		return false
	}
	a.tokens--
	a.answered++
	return true
}

// during returns the calls per second that were answered, and the share that was refused.
func (a *limitedAPI) during(d time.Duration) (rate, refused float64) {
	read := func() (int, int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.answered, a.refused
	}
	ok, bad := read()
	time.Sleep(d)
	okNow, badNow := read()
	return float64(okNow-ok) / d.Seconds(), float64(badNow-bad) / float64(okNow-ok+badNow-bad)
}

// callAll lets n callers call as often as they may until the test ends, each with new keys.
func callAll(t *testing.T, api *limitedAPI, n int, slot bool) (client *Client) {
	client, open := openClient(t, "http://api.example.com")
	open.transport = api
	ctx, end := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	t.Cleanup(func() { end(); callers.Wait() })
	for caller := range n {
		callers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				release := func() {}
				if slot {
					var err error
					if release, err = client.Slot(ctx); err != nil {
						return
					}
				} else if may, wait := client.Take(1); may == 0 {
					time.Sleep(wait)
					continue
				}
				a := Post(ctx, client, "/v1/invoices", once.Attempt[int]{Repeat: once.ByKey, Idempotency: strconv.Itoa(caller) + ":" + strconv.Itoa(i), Request: []byte("{}")})
				release()
				if a.Class == once.NotSent {
					time.Sleep(max(a.RetryAfter, time.Millisecond))
				}
			}
		})
	}
	return client
}

func TestTheRateFollowsTheLimitOfTheFarSide(t *testing.T) {
	t.Parallel()
	for name, slot := range map[string]bool{"slots": true, "takes": false} {
		for _, c := range []struct {
			limit     float64
			instances int
		}{{500, 1}, {500, 4}, {20, 1}} {
			t.Run(fmt.Sprintf("%s, %.0f a second, %d instances", name, c.limit, c.instances), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					api := newLimitedAPI(c.limit)
					for range c.instances {
						callAll(t, api, 32, slot)
					}
					time.Sleep(10 * time.Second)
					rate, refused := api.during(30 * time.Second)
					require.Greater(t, rate, 0.9*c.limit)
					require.Less(t, refused, 0.04)
					time.Sleep(time.Second)

					api.allow(c.limit / 10)
					time.Sleep(30 * time.Second)
					rate, refused = api.during(30 * time.Second)
					require.Greater(t, rate, 0.6*c.limit/10, "after it fell")
					require.Less(t, refused, 0.15) // of few answers a second each refused one is a large share
				})
			})
		}
	}
}

func TestTheRateEndsWhenNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLimitedAPI(100)
		client := callAll(t, api, 8, false)
		time.Sleep(10 * time.Second)
		require.Positive(t, client.Reading().Pace)
		require.Contains(t, conditions(client), "it refused too many calls (429), so ")
		api.allow(1e6)
		time.Sleep(2 * time.Minute)
		require.Zero(t, client.Reading().Pace)
		rate, _ := api.during(10 * time.Second)
		require.InDelta(t, 400, rate, 1, "eight callers of 20 ms")
		require.NotContains(t, conditions(client), "429")
	})
}

// An effect that is done after all calls were throttled has no trouble that others have, too.
func TestWhatIsDoneAfterAThrottlingIsNotGeneral(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, open := openClient(t, "http://api.example.com")
		open.transport = newLimitedAPI(1)
		call := func(key int) once.Answer {
			return Post(t.Context(), client, "/v1/invoices", once.Attempt[int]{Repeat: once.ByKey, Idempotency: strconv.Itoa(key), Request: []byte("{}")})
		}
		key := 0
		for ; client.Reading().Throttled == 0; key++ {
			call(key)
		}
		time.Sleep(client.Reading().Throttled)
		a := call(key)
		require.Equal(t, once.Done, a.Class)
		require.False(t, a.General)
		require.True(t, call(key+1).General, "it is refused as the others were")
	})
}

// While few call, nobody waits for the rate, and their answers say nothing about a higher one.
func TestTheRateStaysWhileFewCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := callAll(t, newLimitedAPI(100), 1, false)
		for range 100 {
			client.opened.Load().pace.answered(time.Now(), time.Now(), healthy)
		}
		client.opened.Load().pace.lower(time.Now(), time.Now())
		rate := client.Reading().Pace
		require.Greater(t, rate, 90.0)
		time.Sleep(30 * time.Second)
		require.Equal(t, rate, client.Reading().Pace)
	})
}

// A limit that some effects have for themselves costs the others nothing while it refuses less than a quarter of all
// keys, and at most half of the rate when there was a rate already.
func TestTheLimitOfSomeEffectsDoesNotSlowTheOthersDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLimitedAPI(1e6)
		api.unfair = func(key string) bool { return strings.HasSuffix(key, "7") } // a tenth
		client := callAll(t, api, 8, false)
		time.Sleep(10 * time.Second)
		require.Zero(t, client.Reading().Pace)

		client.opened.Load().pace.lower(time.Now(), time.Now())
		rate, _ := api.during(time.Minute)
		require.Greater(t, rate, 0.35*360)
	})
}

func TestAWaitForTheRateEnds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end func(*Client, context.CancelFunc)
		err error
	}{
		"the caller goes away": {func(_ *Client, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"the process drains":   {func(c *Client, _ context.CancelFunc) { c.Drain(); c.Drain() }, slots.ErrNoMore},
		"the client is closed": {func(c *Client, _ context.CancelFunc) { _ = c.Close() }, slots.ErrNoMore},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, open := openClient(t, "http://api.example.com")
				open.pace.lower(time.Now(), time.Now())
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 3)
				for range cap(ended) {
					go func() {
						release, err := client.Slot(ctx)
						if err == nil {
							release()
						}
						ended <- err
					}()
				}
				require.NoError(t, <-ended, "one a second begins")
				c.end(client, cancel)
				require.ErrorIs(t, <-ended, c.err)
				require.ErrorIs(t, <-ended, c.err)
				require.Zero(t, open.slots.Taken())
			})
		})
	}
}

func conditions(c *Client) (texts string) {
	for _, one := range c.Conditions() {
		texts += one.Text + "\n"
	}
	return texts
}
