package waitingroom

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// operated is a dispatcher with a console, on a Redis of its own.
type operated struct {
	t        *testing.T
	rooms    *room.Store
	registry *pipeline.Registry
	redis    string // address
	instance string
	base     string
}

func startOperated(t *testing.T, promoteInterval time.Duration, change ...func(*config, *pipeline.Env)) *operated {
	t.Helper()
	o := &operated{t: t, instance: "test-" + watermill.NewULID()}
	shared, tokens, hubs := redis.New(), token.New(), sse.New()
	settings := shared.Settings().(*redis.Config)
	o.redis = redistest.Mini(t).Addr
	settings.Addrs = []string{o.redis}
	dead := deadletter.New(kafka.New(), shared)
	p := New(shared, dead, tokens, hubs, web.New(tokens, hubs))
	p.config.Roles, p.config.Dispatcher.PromoteInterval = []string{roleDispatcher}, promoteInterval
	c := console.New()
	config := c.Settings().(*console.Config)
	config.Listen, config.TrustedProxies, config.Auth.Header = "127.0.0.1:0", []string{"127.0.0.1"}, "X-User"
	config.Roles = map[string]operate.Role{"eve": operate.Operator, "vic": operate.Viewer}
	require.NoError(t, config.Validate())
	env := pipeline.Env{Instance: o.instance, Logger: redistest.Logger(t)}
	for _, f := range change {
		f(&p.config, &env)
	}
	registry, err := pipeline.NewRegistry(env, shared, dead, reclaim.New(shared), p, c)
	require.NoError(t, err)
	runtime := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{Wrap: middleware.New(registry, middleware.Options{}).Wrap, StopTimeout: 10 * time.Second})
	require.NoError(t, runtime.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, runtime.Stop(context.Background())) })
	o.registry, o.base = registry, "http://"+c.Addr()
	o.rooms = pipeline.Offers[operators](registry)[0].rooms
	return o
}

// do sends a request of a person, and returns the status and the body of the answer.
func (o *operated) do(person, method, path, body string) (int, string) {
	o.t.Helper()
	request, err := http.NewRequestWithContext(o.t.Context(), method, o.base+path, strings.NewReader(body))
	require.NoError(o.t, err)
	request.Header.Set("X-User", person)
	request.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	answer, err := client.Do(request)
	require.NoError(o.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(o.t, err)
	return answer.StatusCode, string(text)
}

// page returns the HTML of a page.
func (o *operated) page(path string) string {
	o.t.Helper()
	status, text := o.do("vic", http.MethodGet, path, "")
	require.Equal(o.t, http.StatusOK, status, text)
	return text
}

// sees waits until a person reads texts on a page. Equal loads share an answer for a moment.
func (o *operated) sees(path string, texts ...string) {
	o.t.Helper()
	page := ""
	require.Eventually(o.t, func() bool {
		page = words(o.page(path))
		return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(page, text) })
	}, minute, 20*time.Millisecond, "%q is not all on the page %s", texts, lateString{&page})
}

// lateString is printed as it is at the end.
type lateString struct{ text *string }

func (l lateString) String() string { return *l.text }

// act uses an action as a program does, and returns the status of the answer.
func (o *operated) act(person, verb string, input map[string]any) (int, string) {
	o.t.Helper()
	body, err := json.Marshal(map[string]any{"input": input, "why": "ticket 4711"})
	require.NoError(o.t, err)
	return o.do(person, http.MethodPost, "/api/v1/actions/room/"+verb, string(body))
}

// steer is act by an operator, which must be done.
func (o *operated) steer(verb, event string, fields ...string) {
	o.t.Helper()
	input := map[string]any{"event": event}
	for i := 0; i < len(fields); i += 2 {
		input[fields[i]] = fields[i+1]
		if n, err := strconv.Atoi(fields[i+1]); err == nil {
			input[fields[i]] = n
		}
	}
	status, text := o.act("eve", verb, input)
	require.Equal(o.t, http.StatusOK, status, text)
}

func (o *operated) enter(event, user string) {
	o.t.Helper()
	_, err := o.rooms.Enter(o.t.Context(), event, user, "broker-1", 0)
	require.NoError(o.t, err)
}

// tags cuts the tags of HTML, so that a test reads what a person does.
var tags = regexp.MustCompile(`(\s*<[^>]*>\s*)+`)

func words(page string) string { return html.UnescapeString(tags.ReplaceAllString(page, "|")) }

const minute = 2 * time.Minute

func TestThePageOfAllRooms(t *testing.T) {
	t.Parallel()
	o := startOperated(t, 100*time.Millisecond)
	o.sees("/rooms", "No event has a waiting room")
	o.steer(room.Open, "small", "capacity", "3", "concurrency", "0")
	o.steer(room.Open, "large", "capacity", "5000", "concurrency", "0")
	for _, user := range []string{"ann", "ben"} {
		o.enter("large", user)
	}
	o.sees("/rooms", "Capacity ≥ leases + sold", "|small|", "|large|open|2|0|0|5,000|0|unknown|capacity 5,000 ≥ 0 leases + 0 sold|")
	page := words(o.page("/rooms"))
	require.Less(t, strings.Index(page, "|large|"), strings.Index(page, "|small|"), "the longest queue comes first")
	require.Contains(t, o.page("/rooms"), `rooms/room?event=large"`)
	require.NotContains(t, page, "A page has at most", "all rooms are on this one")

	// Whoever holds more than there is, is red, and a sentence says why.
	o.steer(room.Set, "small", "concurrency", "2")
	for _, user := range []string{"ann", "ben"} {
		o.enter("small", user)
	}
	o.sees("/rooms", "capacity 3 ≥ 2 leases + 0 sold")
	o.steer(room.Set, "small", "capacity", "1")
	o.sees("/rooms", "capacity 1 < 2 leases + 0 sold: 1 seat too many")
	require.Regexp(t, `<td class="[^"]*fail[^"]*"[^>]*>[^<]*capacity 1 &lt; 2 leases`, o.page("/rooms"))
	o.sees("/rooms/room?event=small", "MillraceRoomOverCapacity", "admitted users hold the last seats")
}

// A page reads a bounded number of rooms, and leads to the others.
func TestTheListOfRoomsHasPages(t *testing.T) {
	t.Parallel()
	o := startOperated(t, room.MaxInterval) // the embedded server is slow
	const rooms = 2*room.PageSize + 5
	for i := range rooms {
		require.NoError(t, o.rooms.Create(t.Context(), fmt.Sprintf("event-%04d", i)))
	}
	seen, path, read := map[string]bool{}, "rooms", 0
	for path != "" && read < 10 {
		var page string
		require.Eventually(t, func() bool { // the console waits 500 ms for a panel, and goes on with the same read
			page = o.page("/" + path)
			return !strings.Contains(page, "No answer within")
		}, time.Minute, 10*time.Millisecond)
		found := regexp.MustCompile(`rooms/room\?event=(event-\d+)`).FindAllStringSubmatch(page, -1)
		require.LessOrEqual(t, len(found), room.PageSize)
		require.Contains(t, page, "A page has at most 100 rooms")
		for _, one := range found {
			seen[one[1]] = true
		}
		next := regexp.MustCompile(`href="/?(rooms\?after=[^"]+)" rel="next"`).FindStringSubmatch(page)
		path = ""
		if next != nil {
			path = next[1]
		}
		read++
	}
	require.Len(t, seen, rooms)
	require.Equal(t, 3, read)
	require.Contains(t, o.page("/rooms?after=nonsense"), "names no part of the list")
}

func TestThePageOfARoom(t *testing.T) {
	t.Parallel()
	o := startOperated(t, 100*time.Millisecond)
	const hostile = `<img src=x onerror=alert(1)>`
	require.Contains(t, o.page("/rooms/room?event=none"), "has no room. The action room open creates one.")
	require.Contains(t, o.page("/rooms/room"), "Give the id of an event")
	require.Contains(t, o.page("/rooms/room?event=%3Cb%3E"), "Give the id of an event")
	o.steer(room.Open, "42", "capacity", "500", "concurrency", "1", "closes-at", "2099-12-01T10:00:00Z")
	o.sees("/rooms/room?event=42", "|"+o.instance+"|dispatcher|runs|", "the last tick was 0s ago, by "+o.instance)
	o.enter("42", "ann")
	o.sees("/rooms/room?event=42", "|Promoted, not notified|1|")
	o.enter("42", hostile)
	o.steer(room.Message, "42", "text", hostile)
	o.steer(room.Hold, "42")
	o.sees("/rooms/room?event=42",
		"|State|paused|", "|No promotions because|the room is on hold|", "|Waiting|1|", "|Promoted, not notified|1|", "|Capacity|500|", "|Admitted at most|1|",
		"|Per minute at most|no limit|", "capacity 500 ≥ 1 leases + 0 sold", "the last tick was ", "|Message|<img src=x onerror=alert(1)>|", "|Mode|fifo|", "|Closes|in ",
		"|hold|eve (API, operator)|ticket 4711|", "|open|eve (API, operator)|ticket 4711|capacity=500 ",
	)
	source := o.page("/rooms/room?event=42")
	require.NotContains(t, source, "<img")
	page := words(source)
	require.Less(t, strings.Index(page, "|hold|eve"), strings.Index(page, "|open|eve"), "the newest change comes first")

	// The instances: this dispatcher reads the promotions, and a broker that has no presence has the users.
	o.sees("/rooms/room?event=42", "|"+o.instance+"|dispatcher|runs|", "|broker-1|broker|never had a presence|–|–|2|")

	// A person: the place, the turn, or why there is none.
	require.NotContains(t, source, "Why there is no place")
	person := func(user string, texts ...string) {
		t.Helper()
		o.sees("/rooms/room?"+url.Values{"event": {"42"}, "user": {user}}.Encode(), texts...)
	}
	person(hostile, "|User|<img src=x onerror=alert(1)>|State|waits|Place|1|Ahead|0|Connection|broker-1|Bought|0|")
	person("ann", "|State|promoted, not notified|Turn ends|in ")
	person("nobody", "|State|no place|Why there is no place|unknown|")
	o.steer(room.Kick, "42", "user", hostile)
	person(hostile, "|State|no place|Why there is no place|kicked|", "|kick|eve (API, operator)|")
	person(strings.Repeat("x", 129), "user: must be 1 to 128 printable characters")
	o.sees("/rooms/room?event=none&user=ann", "has no room, so nobody has a place")
}

// A viewer reads each page and changes nothing, and an operator does.
func TestTheRolesOfTheRooms(t *testing.T) {
	t.Parallel()
	o := startOperated(t, 100*time.Millisecond)
	for _, verb := range admin.Changes() {
		status, text := o.act("vic", verb, map[string]any{"event": "42"})
		require.Equal(t, http.StatusForbidden, status, text)
		status, _ = o.do("vic", http.MethodGet, "/actions/room/"+verb+"?event=42", "")
		require.Equal(t, http.StatusForbidden, status, verb)
	}
	_, err := o.rooms.RoomStatus(t.Context(), "42")
	require.ErrorIs(t, err, room.ErrUnknown)
	o.steer(room.Open, "42", "capacity", "5", "concurrency", "0")
	status, form := o.do("eve", http.MethodGet, "/actions/room/hold?event=42", "")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, form, `value="42"`, "the page of the room has filled in the event")
	status, text := o.act("eve", room.Resume, map[string]any{"event": "42"})
	require.Equal(t, http.StatusConflict, status, text)
	require.Contains(t, text, "the room is open")
	status, text = o.act("eve", room.Set, map[string]any{"event": "42", "capacity": "many"})
	require.Equal(t, http.StatusBadRequest, status, text)
	links := o.page("/rooms/room?event=42&user=ann")
	for _, verb := range admin.Changes() {
		require.Contains(t, links, "room "+verb, "each control has its form")
	}
}

// A dispatcher that does not tick is a red light, by the clock of the server.
func TestALateTickIsRed(t *testing.T) {
	t.Parallel()
	require.Equal(t, operate.OK, ticksOf(room.Status{Now: 20_000, LastTick: 10_001}).Level)
	late := ticksOf(room.Status{Now: 50_000, LastTick: 10_000, TickedBy: "d-1"})
	require.Equal(t, operate.Fail, late.Level)
	require.Contains(t, late.Text, "the last tick was 40s ago, by d-1: no dispatcher promotes users")
	require.Equal(t, operate.Warn, booksOf(room.Status{Capacity: -1}).Level)
	require.Equal(t, operate.OK, booksOf(room.Status{Capacity: 3, Ready: 1, Admitted: 1, Sold: 1}).Level)
	require.Equal(t, operate.Fail, booksOf(room.Status{Capacity: 2, Ready: 1, Admitted: 1, Sold: 1}).Level)
}

// The rate is known from the second look on, and is never that of another room with the same event.
func TestTheRateOfARoom(t *testing.T) {
	t.Parallel()
	r := &rates{}
	at := func(second, promoted int64) pages.Cell {
		return r.of(room.Status{Event: "42", Now: 1000 * (1000 + second), Promoted: promoted})
	}
	require.Nil(t, at(0, 100).Data, "the first look")
	require.Nil(t, at(1, 110).Data, "too soon")
	require.EqualValues(t, 600, at(6, 160).Data)
	require.EqualValues(t, 600, at(10, 200).Data, "since the same look")
	require.EqualValues(t, 6*60, at(16, 220).Data)
	require.Nil(t, at(20, 3).Data, "the room was created again")
	require.Nil(t, at(2000, 900).Data, "the last look was long ago")
	for i := range 2 * rateRooms {
		r.of(room.Status{Event: fmt.Sprint(i), Now: 3_000_000, Promoted: 1})
	}
	require.LessOrEqual(t, len(r.looks), rateRooms)
}
