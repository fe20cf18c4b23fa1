// Package pages has the web page of the waiting room.
package pages

import (
	_ "embed" // the page
	"html/template"
	"strings"
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

	// What Looks.Dress sets.
	Shop     string // empty: none
	Title    string // of the event
	Logo     string // its address; empty: none
	Language string
	Text     map[string]string // by the keys of Texts
	Links    []Link
	SignIn   string // address with {page}; empty: none
	Light    pair   // colors
	Dark     pair
}

// Waiting returns the page of a user who waits. It connects to /events/<id>/tickets/waiting of its
// own origin, with its own query.
func Waiting() *template.Template {
	page := template.New("room").Funcs(template.FuncMap{"direction": direction})
	return template.Must(sse.AddModule(page).Parse(roomPage))
}

// direction returns the direction in which a language is written.
func direction(language string) string {
	switch base, _, _ := strings.Cut(strings.ToLower(language), "-"); base {
	case "ar", "dv", "fa", "he", "ps", "sd", "ug", "ur", "yi":
		return "rtl"
	}
	return "ltr"
}
