package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// drawUsers is the number of users of a draw. Their positions are exact.
const drawUsers = 50

// DrawOptions are what a draw uses. All are required.
type DrawOptions struct {
	Event  string
	Rooms  *room.Store
	By     string // operator
	URL    string // address of the brokers
	Client *http.Client
	File   string // for the audit
}

// Drawn is the result of a draw.
type Drawn struct {
	Users      int    `json:"users"`
	Commitment string `json:"commitment"`        // published before the users entered
	Problem    string `json:"problem,omitempty"` // empty: the order was verified
}

// Draw opens a room with a shuffled pre-queue and verifies its order from the audit file alone. The
// position of each user must be the one in the file.
func Draw(ctx context.Context, o DrawOptions) (Drawn, error) {
	change := func(verb string, mode *string) (room.Status, error) {
		seats, none := int64(drawUsers), int64(0)
		c := room.Change{Verb: verb, By: o.By, Why: "demo", Mode: mode}
		if verb == room.Open {
			c.Capacity, c.Concurrency = &seats, &none
		}
		return o.Rooms.Control(ctx, o.Event, c)
	}
	mode := room.Shuffle
	announced, err := change(room.Open, &mode)
	if err != nil {
		return Drawn{}, err
	}
	drawn := Drawn{Users: drawUsers, Commitment: announced.Commitment}
	crowd := make([]*visitor, drawUsers)
	for i := range crowd {
		crowd[i] = &visitor{run: &run{Options: Options{Event: o.Event, URL: o.URL, Client: o.Client}}, name: fmt.Sprintf("user-%d", i+1)}
		if _, err := crowd[i].position(ctx, ""); err != nil {
			return drawn, err
		}
	}
	if _, err := change(room.Open, nil); err != nil {
		return drawn, err
	}
	audit, err := o.audit(ctx)
	if err != nil {
		return drawn, err
	}
	if drawn.Problem, err = check(ctx, announced.Commitment, audit, crowd); err != nil {
		return drawn, err
	}
	_, err = change(room.Close, nil)
	return drawn, err
}

// audit waits for the end of the draw, and returns what its audit file has.
func (o DrawOptions) audit(ctx context.Context) (a shuffle.Audit, err error) {
	for a, err = o.Rooms.Shuffle(ctx, o.Event); errors.Is(err, room.ErrConflict) && loop.Sleep(ctx, callWait); {
		a, err = o.Rooms.Shuffle(ctx, o.Event)
	}
	if err != nil {
		return a, err
	}
	f, err := os.Create(o.File)
	if err != nil {
		return a, fmt.Errorf("audit of the draw: %w", err)
	}
	if err := errors.Join(a.Write(f), f.Close()); err != nil {
		return a, err
	}
	if f, err = os.Open(o.File); err != nil {
		return a, fmt.Errorf("audit of the draw: %w", err)
	}
	defer func() { _ = f.Close() }()
	return shuffle.Read(f)
}

// check returns what is wrong with a draw.
func check(ctx context.Context, commitment string, a shuffle.Audit, crowd []*visitor) (problem string, err error) {
	if err := a.Verify(); err != nil {
		return "draw: " + err.Error(), nil //nolint:nilerr // it is the result
	}
	if commitment == "" || a.Commitment != commitment || a.Users != len(crowd) {
		return fmt.Sprintf("draw: the file has %d users and the commitment %s, expected %d and %s", a.Users, a.Commitment, len(crowd), commitment), nil
	}
	for _, v := range crowd {
		var position *int64
		for position == nil {
			if position, err = v.position(ctx, "/status"); err != nil {
				return "", err
			}
			if position == nil && !loop.Sleep(ctx, callWait) {
				return "", context.Cause(ctx)
			}
		}
		if place := a.Place(v.name); int64(place) != *position {
			return fmt.Sprintf("draw: %s has position %d, and place %d in the file", v.name, *position, place), nil
		}
	}
	return "", nil
}

// position enters with the empty path, and returns the position of the user. It is nil before the
// draw.
func (v *visitor) position(ctx context.Context, path string) (position *int64, err error) {
	var answer struct{ Position *int64 }
	err = v.retry(ctx, func() error {
		text, err := v.call(ctx, http.MethodGet, path, http.StatusOK)
		if err == nil {
			err = json.Unmarshal(text, &answer)
		}
		return err
	})
	return answer.Position, err
}
