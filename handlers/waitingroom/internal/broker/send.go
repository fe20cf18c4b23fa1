package broker

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
)

// EntryAudience returns the audience of the entry tokens of an event.
func EntryAudience(event string) string { return "millrace-room:" + event }

// idAudience returns the audience of the signed indexes of an event.
func idAudience(event string) string { return "millrace-room-index:" + event }

// idTime is the life of a signed index by the server's clock, because that of a process may be wrong. It is shorter than
// the hour in which the server remembers who has left: otherwise an old index would restore a place that was used.
const idTime = 45 * time.Minute

// placed is the data of the stream event connected.
type placed struct {
	Event   string     `json:"eventId"`
	State   room.State `json:"state"`
	Status  string     `json:"status"`
	Index   int64      `json:"idx"`
	Resumed bool       `json:"resumed"`
}

func placeOf(event string, p room.Place) placed {
	return placed{event, p.State, p.State.Status(), p.Index, p.How != "new"}
}

// entry is the data of the stream event promoted.
type entry struct {
	Token string `json:"token"`
	JTI   string `json:"jti"`
	Until int64  `json:"until"`
	Now   int64  `json:"now"` // the server's time
}

// entry returns the token of a lease.
func (b *Broker) entry(event, user string, p room.Place) (entry, error) {
	raw, err := b.opts.Tokens.Sign(token.Claims{Audience: EntryAudience(event), Subject: user, ID: p.JTI, Expires: time.UnixMilli(p.Until)})
	return entry{raw, p.JTI, p.Until, p.Now}, err
}

// signID returns the id of stream events for a user at an index, given the server's time. Without a key it has no text.
func (b *Broker) signID(event, user string, index int64, now time.Time) signedID {
	text, err := b.opts.Tokens.Sign(token.Claims{
		Audience: idAudience(event), Subject: user, ID: strconv.FormatInt(index, 10), Expires: now.Add(idTime),
	})
	if err != nil {
		b.sampled.Warn(b.log, "index of a user not signed", logs.Err(err))
	}
	return signedID{index, text}
}

// unsigned is the cursor of an id that is not signed for the user, or has expired: it restores
// nothing.
const unsigned = -1

// cursor is the index that a user presents, and when it expires, in ms of the server's clock. The server decides
// whether it has.
type cursor struct{ index, until int64 }

// at returns the cursor at a time of the server.
func (c cursor) at(now int64) int64 {
	if c.until > 0 && now > c.until {
		return unsigned
	}
	return c.index
}

// cursor returns that of an id. Its index is 0 without one.
func (b *Broker) cursor(event, user, id string) cursor {
	if id == "" {
		return cursor{}
	}
	c, err := b.opts.Tokens.Verify(idAudience(event), id)
	if errors.Is(err, token.ErrExpired) { // by the clock of this process
		err = nil
	}
	index, bad := strconv.ParseInt(c.ID, 10, 64)
	if err != nil || bad != nil || c.Subject != user {
		return cursor{index: unsigned}
	}
	return cursor{index, c.Expires.UnixMilli()}
}

// reasons returns the reasons of the event closed, which are labels of a metric.
func reasons() []string {
	return []string{"left", "kicked", "grace", "sold", "abandoned", "lease_over", "room_closed", "sold_out"}
}

// send sends a step to a connection. The caller has the lock of the event.
func (b *Broker) send(l *eventUsers, c *conn, s outgoing) {
	u := c.user
	var data any
	switch s.name {
	case eventConnected:
		data = placeOf(l.event, u.place)
	case eventPosition:
		data = s.position
	case eventMessage:
		data = map[string]string{"text": s.text}
	case eventPromoted:
		if u.promotion.JTI != u.place.JTI || u.promotion.Until != u.place.Until {
			var err error
			if u.promotion, err = b.entry(l.event, u.id, u.place); err != nil {
				b.sampled.Warn(b.log, "entry token not signed", logs.Err(err))
				return
			}
		}
		u.promotion.Now = u.place.Now
		data = u.promotion
	case eventClosed:
		if !slices.Contains(reasons(), s.text) {
			s.text = reasonUnknown
		}
		c.client.Close(s.text)
		return
	}
	text, _ := json.Marshal(data) // its fields are always encoded
	e := sse.Event{Name: s.name, Data: text}
	if s.name == eventPosition && !s.id {
		c.client.Latest(eventPosition, e)
		return
	}
	if s.id {
		id := c.id
		if id.index != u.place.Index {
			id = b.signID(l.event, u.id, u.place.Index, u.serverTime(time.Now()))
		}
		e.ID, c.id = id.text, signedID{}
	}
	if s.name != eventMessage {
		c.client.Remove(eventPosition)
	}
	c.client.Send(e)
}
