package shop

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/broker"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/token"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

const credential = "the credential of a shop"

// rig is the shop's side of a room for event 42 with one seat.
type rig struct {
	t      *testing.T
	rooms  *room.Store
	tokens *token.Plugin
	shop   *Shop
	labels *topevents.Labels
	http   *http.ServeMux
	server *redis.Server
	log    pipelinetest.Buffer
	// The last answer, and the message of a refusal.
	answer  Entry
	message string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	own := redis.DefaultClientConfig()
	own.Addrs = []string{redistest.Mini(t).Addr}
	own.MaxRetries = -1
	server := redis.New().Server(&own)
	server.Log = slog.New(slog.DiscardHandler)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	r := &rig{t: t, tokens: token.New(), http: http.NewServeMux(), server: server}
	r.rooms = room.New(server, options(time.Hour))
	_, err := pipeline.NewRegistry(pipeline.Env{}, r.tokens)
	require.NoError(t, err)
	r.labels = topevents.New()
	r.shop = New(r.rooms, r.tokens, r.labels, map[string]setting.Secret{"app": setting.NewSecret("another credential"), "web": setting.NewSecret(credential)}, slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	r.http.Handle("POST /events/{id}/entry/verify", r.shop.handler(verify))
	r.http.Handle("POST /events/{id}/entry/extend", r.shop.handler(extend))
	r.http.Handle("POST /events/{id}/entry/finish", r.shop.handler(finish))
	require.NoError(t, r.rooms.Create(t.Context(), "42"))
	require.NoError(t, r.rooms.SetCapacity(t.Context(), "42", 1))
	return r
}

func options(tokenTTL time.Duration) room.Options {
	return room.Options{
		PromoteInterval: 10 * time.Millisecond, PromoteBatch: 10, TokenTTL: tokenTTL, MaxTurn: 3 * tokenTTL, ReadyTTL: time.Hour,
		Grace: time.Hour, SeenInterval: time.Minute, ClearAfter: time.Hour, MaxEvents: 10,
	}
}

// tickUntil runs ticks until the state of a user is the expected one.
func (r *rig) tickUntil(user string, want room.State) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		_, err := r.rooms.Tick(r.t.Context(), "42")
		p, failed := r.rooms.Status(r.t.Context(), "42", user)
		return err == nil && failed == nil && p.State == want
	}, 2*time.Minute, 5*time.Millisecond)
}

// admit returns the entry token of a user that was promoted and notified.
func (r *rig) admit(user string) string { return r.admitBy(r.rooms, user) }

func (r *rig) admitBy(rooms *room.Store, user string) string {
	r.t.Helper()
	_, err := r.rooms.Enter(r.t.Context(), "42", user, "broker", 0)
	require.NoError(r.t, err)
	r.tickUntil(user, room.Ready)
	places, err := rooms.Claim(r.t.Context(), "42", "broker", []room.Sign{{User: user}})
	require.NoError(r.t, err)
	return r.sign("42", user, places[0].JTI, time.UnixMilli(places[0].Until))
}

func (r *rig) sign(event, user, jti string, end time.Time) string {
	r.t.Helper()
	raw, err := r.tokens.Sign(token.Claims{Audience: broker.EntryAudience(event), Subject: user, ID: jti, Expires: end})
	require.NoError(r.t, err)
	return raw
}

// post returns the status and the word or state of the answer.
func (r *rig) post(path, body string, header ...string) (int, string) {
	r.t.Helper()
	if header == nil {
		header = []string{"Bearer " + credential}
	}
	q := httptest.NewRequestWithContext(r.t.Context(), http.MethodPost, path, strings.NewReader(body))
	q.Header["Authorization"] = header
	w := httptest.NewRecorder()
	r.http.ServeHTTP(w, q)
	var answer struct{ Error, Message, State string }
	text, err := io.ReadAll(w.Body)
	require.NoError(r.t, err)
	require.NoError(r.t, json.Unmarshal(text, &answer), "%s", text)
	require.NoError(r.t, json.Unmarshal(text, &r.answer), "%s", text)
	r.message = answer.Message
	return w.Code, answer.Error + answer.State
}

func (r *rig) verify(raw, by string) (int, string) {
	r.t.Helper()
	return r.post("/events/42/entry/verify", `{"token":"`+raw+`","by":"`+by+`"}`)
}

func (r *rig) finish(raw, by, result string) (int, string) {
	r.t.Helper()
	return r.post("/events/42/entry/finish", `{"token":"`+raw+`","by":"`+by+`","result":"`+result+`"}`)
}

func (r *rig) want(wantStatus int, wantWord string) func(int, string) {
	return func(status int, word string) {
		r.t.Helper()
		require.Equal(r.t, wantStatus, status, word)
		require.Equal(r.t, wantWord, word)
	}
}

func TestASessionBuys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	raw := r.admit("ann")
	r.want(200, "ADMITTED")(r.verify(raw, "session-1"))
	r.want(200, "ADMITTED")(r.verify(raw, "session-1"))
	r.want(409, "used")(r.verify(raw, "session-2"))
	r.want(409, "used")(r.finish(raw, "", "sold"))
	r.want(409, "used")(r.finish(raw, "session-2", "abandoned"))
	require.Contains(t, r.message, "repeat the request with its by, or let an operator")
	r.want(200, "SOLD")(r.finish(raw, "session-1", "sold"))
	r.want(200, "SOLD")(r.finish(raw, "session-1", "sold"))
	r.want(409, "used")(r.finish(raw, "session-2", "sold"))
	r.want(409, "conflict")(r.finish(raw, "session-1", "abandoned"))
	r.want(410, "ended")(r.verify(raw, "session-1"))
	r.counts(`
# HELP millrace_room_ended_total Leases that ended by a tick, a result of the shop or a departure, by event and state (SOLD, ABANDONED, EXPIRED).
# TYPE millrace_room_ended_total counter
millrace_room_ended_total{event="42",state="ABANDONED"} 0
millrace_room_ended_total{event="42",state="EXPIRED"} 0
millrace_room_ended_total{event="42",state="SOLD"} 1
`, r.labels.Collectors()[0])
	r.counts(`
# HELP millrace_room_shop_requests_total Requests of shops, by name (empty: of none of shop_tokens), request (verify, extend, finish) and answer: ok, or the word of the refusal.
# TYPE millrace_room_shop_requests_total counter
millrace_room_shop_requests_total{answer="conflict",request="finish",shop="web"} 1
millrace_room_shop_requests_total{answer="ended",request="verify",shop="web"} 1
millrace_room_shop_requests_total{answer="no_shop",request="extend",shop=""} 0
millrace_room_shop_requests_total{answer="no_shop",request="finish",shop=""} 0
millrace_room_shop_requests_total{answer="no_shop",request="verify",shop=""} 0
millrace_room_shop_requests_total{answer="ok",request="extend",shop="app"} 0
millrace_room_shop_requests_total{answer="ok",request="extend",shop="web"} 0
millrace_room_shop_requests_total{answer="ok",request="finish",shop="app"} 0
millrace_room_shop_requests_total{answer="ok",request="finish",shop="web"} 2
millrace_room_shop_requests_total{answer="ok",request="verify",shop="app"} 0
millrace_room_shop_requests_total{answer="ok",request="verify",shop="web"} 2
millrace_room_shop_requests_total{answer="unavailable",request="extend",shop="app"} 0
millrace_room_shop_requests_total{answer="unavailable",request="extend",shop="web"} 0
millrace_room_shop_requests_total{answer="unavailable",request="finish",shop="app"} 0
millrace_room_shop_requests_total{answer="unavailable",request="finish",shop="web"} 0
millrace_room_shop_requests_total{answer="unavailable",request="verify",shop="app"} 0
millrace_room_shop_requests_total{answer="unavailable",request="verify",shop="web"} 0
millrace_room_shop_requests_total{answer="used",request="finish",shop="web"} 3
millrace_room_shop_requests_total{answer="used",request="verify",shop="web"} 1
`, r.shop.requests)
}

func (r *rig) counts(want string, c prometheus.Collector) {
	r.t.Helper()
	require.NoError(r.t, testutil.CollectAndCompare(c, strings.NewReader(want)))
}

// is asserts how many leases have ended in a state.
func (r *rig) is(want int, state string) {
	r.t.Helper()
	require.EqualValues(r.t, want, testutil.ToFloat64(r.labels.Collectors()[0].(*prometheus.CounterVec).WithLabelValues("42", state)))
}

// The answer to a shop has the end that counts. Each request and refusal is counted.
func TestASessionExtendsTheTurn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	raw := r.admit("ann")
	place, err := r.rooms.Status(t.Context(), "42", "ann")
	require.NoError(t, err)
	extends := func(by string, until int64) (int, string) {
		t.Helper()
		return r.post("/events/42/entry/extend", `{"token":"`+raw+`","by":"`+by+`","until":`+strconv.FormatInt(until, 10)+`}`)
	}
	hour := time.Hour.Milliseconds()
	limit := place.Until + 2*hour // the turn has one of three hours
	r.want(409, "not_verified")(extends("session-1", limit))
	r.want(200, "ADMITTED")(r.verify(raw, "session-1"))
	r.want(409, "used")(extends("session-2", limit))
	for until, want := range map[int64]int64{place.Until + hour: place.Until + hour, limit + 24*hour: limit} {
		r.want(200, "ADMITTED")(extends("session-1", until))
		require.GreaterOrEqual(t, r.answer.Until, want)
		require.Less(t, r.answer.Until, limit+hour)
	}
	require.Equal(t, "ann", r.answer.UserID)
	_, err = r.rooms.Control(t.Context(), "42", room.Change{Verb: room.Kick, User: "ann"})
	require.NoError(t, err)
	r.want(410, "ended")(extends("session-1", limit))
	for answer, want := range map[string]int{"ok": 2, "not_verified": 1, "used": 1, "ended": 1, "no_shop": 0} {
		require.EqualValues(t, want, testutil.ToFloat64(r.shop.requests.WithLabelValues("web", "extend", answer)), answer)
	}
}

// The lease decides, not the token: a token that has not expired is refused after the end, and one
// that has expired is not.
func TestTheLeaseDecides(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	raw := r.admit("ann")
	place, err := r.rooms.Status(t.Context(), "42", "ann")
	require.NoError(t, err)
	r.want(200, "ADMITTED")(r.verify(r.sign("42", "ann", place.JTI, time.Now().Add(-time.Hour)), "session-1"))
	_, err = r.rooms.Control(t.Context(), "42", room.Change{Verb: room.Kick, User: "ann"})
	require.NoError(t, err)
	r.want(410, "ended")(r.verify(raw, "session-1"))
	r.admit("ben")
	r.want(409, "conflict")(r.finish(raw, "session-1", "sold"))
	require.EqualValues(t, 1, testutil.ToFloat64(r.shop.late.WithLabelValues("42", "conflict")), "the buyer has paid")
}

func TestALateSaleNeedsASeat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	late := r.admitBy(room.New(r.server, options(time.Millisecond)), "ann")
	r.tickUntil("ann", "")
	other := r.admit("ben")
	r.want(409, "conflict")(r.finish(late, "", "sold"))
	require.EqualValues(t, 1, testutil.ToFloat64(r.shop.late.WithLabelValues("42", "conflict")))
	r.want(200, "ABANDONED")(r.finish(other, "", "abandoned"))
	r.want(200, "SOLD")(r.finish(late, "", "sold"))
	require.EqualValues(t, 1, testutil.ToFloat64(r.shop.late.WithLabelValues("42", "sold")))
}

// A late sale that is the last purchase of a user ends the lease that the user has since.
func TestTheLeaseThatALateSaleEndsIsCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.rooms.Control(t.Context(), "42", room.Change{Verb: room.Set, Capacity: new(int64(2))})
	require.NoError(t, err)
	late := r.admitBy(room.New(r.server, options(time.Millisecond)), "ann")
	r.tickUntil("ann", "")
	r.admit("ann")
	o := options(time.Hour)
	o.PurchasesPerUser = 1
	r.shop.rooms = room.New(r.server, o)
	for range 2 {
		r.want(200, "SOLD")(r.finish(late, "", "sold"))
		require.EqualValues(t, 1, testutil.ToFloat64(r.shop.late.WithLabelValues("42", "sold")))
		r.is(1, "ABANDONED")
		r.is(0, "SOLD")
	}
}

// A result that too few replicas have is stored. The shop repeats it, and it is counted once.
func TestAResultWithoutReplicasIsCountedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	raw := r.admit("ann")
	plain := r.shop.rooms
	o := options(time.Hour)
	o.Replicas, o.ReplicaWait = 1, time.Millisecond
	r.shop.rooms = room.New(r.server, o)
	r.want(503, "unavailable")(r.finish(raw, "", "sold"))
	r.shop.rooms = plain
	r.want(200, "SOLD")(r.finish(raw, "", "sold"))
	r.is(1, "SOLD")
}

// A lease that a failover lost may end as abandoned. That is no late sale.
func TestALostLeaseIsAbandoned(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.want(200, "ABANDONED")(r.finish(r.sign("42", "ann", strconv.FormatInt(time.Now().UnixMicro(), 10)+"-lost", time.Now().Add(time.Hour)), "", "abandoned"))
	require.Zero(t, testutil.ToFloat64(r.shop.late.WithLabelValues("42", "sold")))
}

func TestOnlyAShopMayUseIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	raw := r.admit("ann")
	body := `{"token":"` + raw + `","by":"s","result":"sold"}`
	for _, verb := range requests() {
		for _, header := range []string{"", "Bearer", "Bearer ", "Bearer the credential of a sho", "Basic " + credential, "Bearer " + raw, credential} {
			r.want(401, "no_shop")(r.post("/events/42/entry/"+verb, body, header))
		}
	}
	r.want(200, "ADMITTED")(r.post("/events/42/entry/verify", body, "bearer another credential"))
	none := New(r.rooms, r.tokens, r.labels, nil, slog.New(slog.DiscardHandler))
	require.Empty(t, none.shops.NameOf(&http.Request{Header: http.Header{"Authorization": {"Bearer "}}}))
}

func TestBadRequestsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	raw := r.admit("ann")
	_, foreign, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: foreign, KeyID: "this-process"}}, nil)
	require.NoError(t, err)
	forged, err := jwt.Signed(signer).Claims(map[string]any{"aud": broker.EntryAudience("42"), "sub": "ann", "jti": "1-x", "exp": time.Now().Add(time.Hour).Unix()}).Serialize()
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		path, body string
		status     int
		word       string
	}{
		"no JSON":            {"/events/42/entry/verify", `token`, 400, "bad_body"},
		"a number as token":  {"/events/42/entry/verify", `{"token":1}`, 400, "bad_body"},
		"no session":         {"/events/42/entry/verify", `{"token":"` + raw + `"}`, 400, "bad_body"},
		"a session of lines": {"/events/42/entry/verify", `{"token":"` + raw + `","by":"a\nb"}`, 400, "bad_body"},
		"no end":             {"/events/42/entry/extend", `{"token":"` + raw + `","by":"s"}`, 400, "bad_body"},
		"an end in text":     {"/events/42/entry/extend", `{"token":"` + raw + `","by":"s","until":"1"}`, 400, "bad_body"},
		"an end of nobody":   {"/events/42/entry/extend", `{"token":"` + raw + `","until":1}`, 400, "bad_body"},
		"no session before":  {"/events/42/entry/extend", `{"token":"` + raw + `","by":"s","until":1}`, 409, "not_verified"},
		"no result":          {"/events/42/entry/finish", `{"token":"` + raw + `"}`, 400, "bad_body"},
		"no session's name":  {"/events/42/entry/finish", `{"token":"` + raw + `","by":"a\nb","result":"sold"}`, 400, "bad_body"},
		"another result":     {"/events/42/entry/finish", `{"token":"` + raw + `","result":"SOLD"}`, 400, "bad_body"},
		"an event of braces": {"/events/%7B42%7D/entry/verify", `{}`, 400, "bad_event"},
		"no token":           {"/events/42/entry/verify", `{"by":"s"}`, 401, "forged"},
		"a forged token":     {"/events/42/entry/verify", `{"token":"` + forged + `","by":"s"}`, 401, "forged"},
		"another event":      {"/events/43/entry/verify", `{"token":"` + raw + `","by":"s"}`, 403, "other_event"},
		"no lease in it":     {"/events/42/entry/verify", `{"token":"` + r.sign("42", "ann", "", time.Now().Add(time.Hour)) + `","by":"s"}`, 401, "forged"},
		"an unknown event":   {"/events/43/entry/verify", `{"token":"` + r.sign("43", "ann", "1-x", time.Now().Add(time.Hour)) + `","by":"s"}`, 404, "unknown"},
		"another lease":      {"/events/42/entry/verify", `{"token":"` + r.sign("42", "ann", "1-x", time.Now().Add(time.Hour)) + `","by":"s"}`, 410, "ended"},
		"of another user":    {"/events/42/entry/verify", `{"token":"` + r.sign("42", "ben", "1-x", time.Now().Add(time.Hour)) + `","by":"s"}`, 410, "ended"},
	} {
		status, word := r.post(tc.path, tc.body)
		require.Equal(t, tc.status, status, name)
		require.Equal(t, tc.word, word, name)
	}
	require.NoError(t, r.server.Stop(t.Context()))
	r.want(503, "unavailable")(r.verify(raw, "s"))
}
