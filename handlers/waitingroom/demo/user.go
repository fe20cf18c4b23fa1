package demo

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/checker"
	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

// UserHeader names the user of a request to the brokers.
const UserHeader = "X-User"

// habitOf returns the usual habit of a user: 13 of 20 buy with one connection.
func habitOf(i int) checker.Habit {
	rare := map[int]checker.Habit{
		3: checker.Abandons, 7: checker.Expires, 9: checker.Leaves, 11: checker.Vanishes, 13: checker.Reconnects, 15: checker.HasTwoTabs,
		17: checker.Abandons,
	}
	return rare[i%20]
}

const (
	reconnectWithin = time.Second // a browser waits longer
	away            = time.Second // of a user that reconnects
	callWait        = 100 * time.Millisecond
)

// visitor is a user during the visit.
type visitor struct {
	*run
	name   string
	habit  checker.Habit
	shop   sync.WaitGroup // requests to the shop, and the one to leave
	leave  context.CancelFunc
	leaves sync.Once
}

// visit is the visit of one user from the arrival to the end.
func (r *run) visit(ctx context.Context, i int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v := &visitor{run: r, name: fmt.Sprintf("user-%d", i+1), habit: r.Habit(i), leave: cancel}
	v.Checker.Arrived(v.name, v.habit)
	var tabs sync.WaitGroup
	tabs.Go(func() { v.tab(ctx, "tab 1") })
	if v.habit == checker.HasTwoTabs {
		tabs.Go(func() { v.tab(ctx, "tab 2") })
	}
	tabs.Wait()
	v.shop.Wait()
}

// tab follows the stream of one tab until the place has ended.
func (v *visitor) tab(ctx context.Context, tab string) {
	connection, positions := 0, 0
	for ctx.Err() == nil {
		client := ssetest.Client{
			URL: v.URL + "/events/" + v.Event + "/tickets/waiting", HTTP: v.Client, Header: http.Header{UserHeader: {v.name}},
			Opened: func(*http.Response) { connection, positions = connection+1, 0 },
			Retry:  func(given time.Duration) time.Duration { return min(given, reconnectWithin) },
		}
		client.Event = func(e ssetest.Event) error {
			if e.Name == "position" {
				positions++
			}
			return v.event(ctx, e, fmt.Sprint(tab, ", connection ", connection), positions)
		}
		err := client.Run(ctx)
		if refused, ok := errors.AsType[*ssetest.StatusError](err); ok {
			v.Checker.Ended(v.name, cmp.Or(reasonIn(refused.Body), refused.Error()))
			return
		}
		switch {
		case errors.Is(err, errAway):
			loop.Sleep(ctx, away)
		case err == nil: // 204: the place has ended meanwhile
			v.Checker.Ended(v.name, v.reason(ctx))
			return
		default:
			return
		}
	}
}

// errAway ends the connection of a user that returns.
var errAway = errors.New("the connection is lost")

// data has the fields of all events.
type data struct {
	Index  int64  `json:"idx"`
	Ahead  int64  `json:"ahead"`
	AsOf   int64  `json:"asOf"`
	Token  string `json:"token"`
	JTI    string `json:"jti"`
	Until  int64  `json:"until"`
	Reason string `json:"reason"`
}

// event takes one event of the stream. positions is the number of positions of the connection.
func (v *visitor) event(ctx context.Context, e ssetest.Event, connection string, positions int) error {
	d := data{Ahead: -1} // null before a draw
	if err := json.Unmarshal([]byte(e.Data), &d); err != nil {
		return v.failed(fmt.Errorf("event %s: %w", e.Name, err))
	}
	switch e.Name {
	case "connected":
		v.Checker.Connected(v.name, connection, d.Index)
	case "position":
		v.Checker.Position(v.name, connection, d.Ahead, d.AsOf)
		if positions >= 3 {
			return v.act(ctx)
		}
	case "promoted":
		first := v.Checker.Promoted(v.name, d.JTI, d.Until)
		switch v.habit {
		case checker.Expires:
		case checker.Leaves, checker.Vanishes:
			return v.act(ctx)
		default:
			if first {
				v.shop.Go(func() { v.purchase(context.WithoutCancel(ctx), d.Token) })
			}
		}
	case "closed":
		if d.Reason != "draining" {
			v.Checker.Ended(v.name, d.Reason)
			return errOver
		}
	}
	return nil
}

// act does what a user with a special habit does.
func (v *visitor) act(ctx context.Context) error {
	switch v.habit {
	case checker.Leaves:
		v.leaves.Do(func() {
			v.Checker.Departed(v.name)
			v.shop.Go(func() {
				err := v.retry(ctx, func() error {
					_, err := v.call(ctx, http.MethodDelete, "", http.StatusNoContent)
					return err
				})
				if ctx.Err() == nil {
					_ = v.failed(err)
				}
			})
		})
	case checker.Vanishes:
		v.Checker.Departed(v.name)
		v.leave()
		return errOver
	case checker.Reconnects:
		return errAway
	}
	return nil
}

// reason asks why the place has ended, after a stream that ended without an answer.
func (v *visitor) reason(ctx context.Context) (reason string) {
	err := v.retry(ctx, func() error {
		text, err := v.call(ctx, http.MethodGet, "/status", http.StatusGone)
		reason = reasonIn(text)
		return err
	})
	if err != nil {
		return err.Error()
	}
	return cmp.Or(reason, "unknown")
}

// reasonIn returns the word of a refusal, or "".
func reasonIn(body []byte) string {
	var refusal struct{ Error string }
	_ = json.Unmarshal(body, &refusal) // of a proxy, it has no word
	return refusal.Error
}

// call sends a request of the user that must have a status.
func (v *visitor) call(ctx context.Context, method, path string, want int) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, v.URL+"/events/"+v.Event+"/tickets/waiting"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set(UserHeader, v.name)
	r.Header.Set("Accept", "application/json")
	answer, err := v.Client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", shopmiddleware.ErrUnavailable, err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode == http.StatusServiceUnavailable {
		return nil, errors.Join(shopmiddleware.ErrUnavailable, err)
	}
	if answer.StatusCode != want {
		err = fmt.Errorf("%s%s: status %d, expected %d: %s", method, path, answer.StatusCode, want, text)
	}
	return text, err
}

// purchase is the visit to the shop.
func (v *visitor) purchase(ctx context.Context, token string) {
	ctx, cancel := context.WithTimeout(ctx, v.Patience)
	defer cancel()
	session, result := "session of "+v.name, checker.Sold
	if v.habit == checker.Abandons {
		result = checker.Abandoned
	}
	err := v.retry(ctx, func() error {
		_, err := v.Gate.Verify(ctx, v.Event, token, session)
		return err
	})
	if err == nil {
		v.replay(ctx, token)
	}
	if err == nil {
		loop.Sleep(ctx, time.Duration(200+rand.IntN(800))*time.Millisecond) //nolint:gosec // no secret
		err = v.retry(ctx, func() error {
			v.Checker.Sends(v.name, time.Now().UnixMilli())
			return v.Gate.Finish(ctx, v.Event, token, session, result == checker.Sold)
		})
		v.replay(ctx, token)
	}
	if errors.Is(err, shopmiddleware.ErrEnded) || errors.Is(err, shopmiddleware.ErrUsed) {
		result, err = checker.Refused, nil
	}
	if v.failed(err) == nil {
		v.Checker.Shop(v.name, result)
	}
}

// replay presents the token of a user with two tabs in a second session.
func (v *visitor) replay(ctx context.Context, token string) {
	if v.habit != checker.HasTwoTabs {
		return
	}
	if _, err := v.Gate.Verify(ctx, v.Event, token, "session of a thief"); !errors.Is(err, shopmiddleware.ErrUnavailable) {
		v.Checker.Replayed(v.name, err == nil)
	}
}

// retry calls f again while the waiting room is unavailable.
func (v *visitor) retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, shopmiddleware.ErrUnavailable) || !loop.Sleep(ctx, callWait) {
			return err
		}
	}
}

// failed ends the demo with an error, unless it is nil.
func (v *visitor) failed(err error) error {
	if err != nil {
		v.fail(fmt.Errorf("%s: %w", v.name, err))
	}
	return err
}
