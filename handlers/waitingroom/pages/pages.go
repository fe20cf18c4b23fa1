// Package pages has the web page of the waiting room.
package pages

import (
	_ "embed" // the page
	"fmt"
	"html/template"
	"time"

	"github.com/millrace-io/millrace/plugins/sse"
)

//go:embed room.html
var roomPage string

// Room is the data of the page Waiting.
type Room struct {
	Event string
	// EntryURL is the address of the shop, with {token} in it. Empty: the page has no way to it.
	EntryURL string
	// Grace is how long the place of a user without a connection is kept.
	Grace time.Duration
	// Releases says that an admitted user without a connection loses the turn at once, until the
	// shop has verified the token.
	Releases bool
	// User is the signed-in user, whose pages of this event share one stream. Empty: nobody has
	// signed in, and the page has a stream of its own.
	User string
	// Silence is the time without an event after which the page takes its stream as lost.
	Silence time.Duration
}

// Waiting returns the page of a user who waits. It connects to /events/<id>/tickets/waiting of its
// own origin, with its own query.
func Waiting() *template.Template {
	return template.Must(sse.AddModule(template.New("room")).Parse(roomPage))
}

// Kept returns the grace in words.
func (r Room) Kept() string {
	n, unit := int(r.Grace.Round(time.Minute).Minutes()), "minute"
	if r.Grace < 2*time.Minute {
		n, unit = int(r.Grace.Round(time.Second).Seconds()), "second"
	}
	if n != 1 {
		unit += "s"
	}
	return fmt.Sprint(n, " ", unit)
}
