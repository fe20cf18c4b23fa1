package room

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/plugins/redis"
)

// lots are the users of a frozen pre-queue and their hashes, in the drawn order.
type lots struct {
	cut    string // of the freeze
	digest shuffle.Hash
	users  []string
	hashes []shuffle.Hash
	aside  int // records that were set aside
}

// Drawn is what a call of Draw has done.
type Drawn struct {
	Users int // of the complete draw; 0 while there is none
	Aside int // bad records that this call has set aside
}

// Draw gives the users of a frozen pre-queue their places, in parts. Several processes may call it
// at once. After an error any of them calls it again: it continues after the last part.
func (r *Store) Draw(ctx context.Context, event string) (Drawn, error) {
	room, err := r.shuffled(ctx, event)
	if err != nil || room["state"] != Drawing {
		return Drawn{}, err
	}
	all, err := r.lots(ctx, event, room)
	done := Drawn{Aside: all.aside}
	if err != nil {
		return done, r.unlessDrawn(ctx, event, err)
	}
	drawn, _ := strconv.Atoi(room["drawn"]) // part returns the right number
	failpoint.Hit(failpoint.Ordered)
	for more := true; more; more = drawn < len(all.users) {
		if drawn, err = r.part(ctx, event, all, drawn, maxCall); err != nil {
			return done, r.unlessDrawn(ctx, event, err)
		}
		failpoint.Hit(failpoint.Drawn)
	}
	done.Users = drawn
	return done, nil
}

// part stores the next places, if start of them are stored. It returns how many are then. limit is
// the maximum size of the part.
func (r *Store) part(ctx context.Context, event string, all lots, start, limit int) (drawn int, err error) {
	end := min(start+limit, len(all.users))
	args := []any{all.digest.String(), all.cut, start, len(all.users), ""}
	var hashes []byte
	for i := start; i < end; i++ {
		args, hashes = append(args, all.users[i]), append(hashes, all.hashes[i][:]...)
	}
	args[4] = string(hashes)
	values, _, err := r.runScript(ctx, "draw", event, args...)
	if err != nil {
		return start, err
	}
	text, _ := values[0].(string)
	return strconv.Atoi(text)
}

// unlessDrawn returns no error when the draw is over: another process completed it, or the room was
// closed.
func (r *Store) unlessDrawn(ctx context.Context, event string, cause error) error {
	room, err := r.shuffled(ctx, event)
	if err == nil && room["state"] != Drawing {
		return nil
	}
	if errors.Is(cause, ErrConflict) {
		cause = errors.New("the users of the pre-queue have changed since it was frozen")
	}
	return errors.Join(fmt.Errorf("draw of event %s: %w", event, cause), err)
}

// shuffled returns the fields of a room that a draw needs.
func (r *Store) shuffled(ctx context.Context, event string) (map[string]string, error) {
	names := []any{"state", "secret", "commitment", "cohort", "drawn", "digest", "drawn_at", "cut"}
	c := redis.Command(append([]any{"HMGET", roomKey(event)}, names...)...)
	if err := r.server.Do(ctx, c); err != nil {
		return nil, err
	}
	texts, err := c.Texts()
	if err != nil {
		return nil, err
	}
	fields := map[string]string{}
	for i, name := range names {
		fields[name.(string)] = texts[i]
	}
	if fields["state"] == "" {
		return nil, ErrUnknown
	}
	return fields, nil
}

// lots reads the users of a frozen pre-queue and orders them. Records that can not be read get no
// place: they are set aside.
func (r *Store) lots(ctx context.Context, event string, room map[string]string) (all lots, err error) {
	size, err := strconv.Atoi(room["cohort"])
	if err != nil {
		return all, err
	}
	var users []string
	var hashes []shuffle.Hash
	for start := 0; start < size; start += maxCall {
		c := redis.Command("ZRANGE", frozenKey(event), start, start+maxCall-1)
		if err := r.server.Do(ctx, c); err != nil {
			return all, err
		}
		texts, err := c.Texts()
		if err != nil {
			return all, err
		}
		if got := start + len(texts); got < min(start+maxCall, size) {
			return all, fmt.Errorf("%d users were frozen, and %d are left", size, got)
		}
		for _, text := range texts {
			user, ok := userOf(text)
			if !ok {
				added, err := r.setAside(ctx, event, text)
				all.aside += added
				if err != nil {
					return all, err
				}
				continue
			}
			users, hashes = append(users, user), append(hashes, shuffle.User(event, user))
		}
	}
	all.cut, all.digest = room["cut"], shuffle.Digest(hashes)
	for _, i := range shuffle.New(room["secret"], all.digest).Order(hashes) {
		all.users, all.hashes = append(all.users, users[i]), append(all.hashes, hashes[i])
	}
	return all, nil
}

// setAside keeps a bad record apart. It returns 0 when the record is there already.
func (r *Store) setAside(ctx context.Context, event, text string) (added int, err error) {
	c := redis.Command("HSETNX", asideKey(event), text, "undecodable")
	if err := r.server.Do(ctx, c); err != nil {
		return 0, err
	}
	n, err := c.Int()
	return int(n), err
}

// userOf returns the user of a record in the queue. A record has one form per user.
func userOf(text string) (user string, ok bool) {
	var record struct{ UserID string }
	if json.Unmarshal([]byte(text), &record) != nil || !ValidUser(record.UserID) {
		return "", false
	}
	return record.UserID, text == `{"userId":"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(record.UserID)+`"}`
}

// Shuffle returns the audit of a draw. The error is ErrConflict until the draw is complete.
func (r *Store) Shuffle(ctx context.Context, event string) (shuffle.Audit, error) {
	room, err := r.shuffled(ctx, event)
	if err != nil {
		return shuffle.Audit{}, err
	}
	switch {
	case room["commitment"] == "":
		return shuffle.Audit{}, fmt.Errorf("%w: the room has no shuffle", ErrConflict)
	case room["drawn_at"] == "":
		return shuffle.Audit{}, fmt.Errorf("%w: the draw is not complete", ErrConflict)
	}
	a := shuffle.Audit{Event: event, Commitment: room["commitment"], Secret: room["secret"], Digest: room["digest"]}
	var users int64
	if err := integers([]string{room["drawn"]}, &users); err != nil {
		return a, fmt.Errorf("audit of the shuffle of event %s: %w", event, err)
	}
	a.Users = int(users)
	for len(a.Order) < a.Users {
		c := redis.Command("HGET", orderKey(event), len(a.Order))
		if err := r.server.Do(ctx, c); err != nil {
			return a, err
		}
		text, err := c.Text()
		if err != nil {
			return a, err
		}
		var hash shuffle.Hash
		if text == "" || len(text)%len(hash) != 0 {
			return a, fmt.Errorf("audit of the shuffle of event %s: places from %d are missing", event, len(a.Order)+1)
		}
		for ; text != ""; text = text[len(hash):] {
			copy(hash[:], text)
			a.Order = append(a.Order, hash)
		}
	}
	return a, nil
}
