package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// The tokens of two operators.
const (
	credential = "the credential of an operator"
	another    = "the credential of another one"
)

// rig is the API on a Redis of its own.
type rig struct {
	t      *testing.T
	rooms  *room.Store
	server *redis.Server
	mux    *http.ServeMux
}

func newRig(t *testing.T) *rig {
	t.Helper()
	own := redis.DefaultClientConfig()
	own.Addrs, own.MaxRetries = []string{redistest.Mini(t).Addr}, -1
	r := &rig{t: t, server: redis.New().Server(&own), mux: http.NewServeMux()}
	r.server.Log = slog.New(slog.DiscardHandler)
	require.NoError(t, r.server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, r.server.Stop(context.Background())) })
	r.rooms = room.New(r.server, room.Options{
		PromoteInterval: 10 * time.Millisecond, PromoteBatch: 10, TokenTTL: time.Hour, ReadyTTL: time.Hour,
		Grace: time.Hour, SeenInterval: time.Minute, ClearAfter: time.Hour, MaxEvents: 10,
	})
	r.mux.Handle(Pattern, Handler(r.rooms, map[string]setting.Secret{"ann": setting.NewSecret(credential), "ben": setting.NewSecret(another)}, slog.New(slog.DiscardHandler)))
	return r
}

func (r *rig) request(path, body, authorization string) (int, string) {
	r.t.Helper()
	q := httptest.NewRequestWithContext(r.t.Context(), http.MethodPost, "/api/v1/rooms/"+path, strings.NewReader(body))
	q.Header.Set("Authorization", authorization)
	w := httptest.NewRecorder()
	r.mux.ServeHTTP(w, q)
	return w.Code, w.Body.String()
}

// post returns the answer of a request that must have a status.
func post[T any](r *rig, status int, path, body string) T {
	r.t.Helper()
	got, text := r.request(path, body, "Bearer "+credential)
	require.Equal(r.t, status, got, text)
	var answer T
	require.NoError(r.t, json.Unmarshal([]byte(text), &answer))
	return answer
}

type refused struct{ Error, Message string }

func (r *rig) enter(user string) {
	r.t.Helper()
	_, err := r.rooms.Enter(r.t.Context(), "42", user, "broker-1", 0)
	require.NoError(r.t, err)
}

func TestTheLifeOfARoom(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const by = `"by":"eve","why":"ticket 4711"`
	require.Equal(t, "unknown", post[refused](r, 404, "42/status", ``).Error)
	s := post[room.Status](r, 200, "42/open", `{`+by+`,"capacity":500,"concurrency":20,"perMinute":60}`)
	require.Equal(t, []int64{500, 20, 60}, []int64{s.Capacity, s.Concurrency, s.PerMinute})
	require.Equal(t, "open", s.State)
	require.True(t, s.Configured)
	require.Equal(t, "paused", post[room.Status](r, 200, "42/hold", `{`+by+`}`).State)
	require.Equal(t, "conflict", post[refused](r, 409, "42/hold", `{`+by+`}`).Error)
	require.Equal(t, "open", post[room.Status](r, 200, "42/resume", `{`+by+`}`).State)
	require.Equal(t, room.Reject, post[room.Status](r, 200, "42/set", `{`+by+`,"mode":"`+room.Reject+`"}`).Mode)
	s = post[room.Status](r, 200, "42/set", `{`+by+`,"concurrency":-1,"mode":"`+room.PassThrough+`"}`)
	require.Equal(t, []any{int64(-1), room.PassThrough, int64(500)}, []any{s.Concurrency, s.Mode, s.Capacity})
	require.Equal(t, "sold out soon", post[room.Status](r, 200, "42/message", `{`+by+`,"message":"sold out soon"}`).Message)
	r.enter("ann")
	r.enter("ben")
	found := post[User](r, 200, "42/find", `{"user":"ben"}`)
	require.Equal(t, room.Waiting, found.State)
	require.Equal(t, "IN_ENTRY", found.Status)
	require.EqualValues(t, 1, *found.Ahead)
	require.Equal(t, "broker-1", found.Instance)
	require.EqualValues(t, 1, post[room.Status](r, 200, "42/kick", `{`+by+`,"user":"ben"}`).Waiting)
	found = post[User](r, 200, "42/find", `{"user":"ben"}`)
	require.Empty(t, found.State)
	require.Equal(t, "kicked", found.Reason)
	require.Equal(t, "draining", post[room.Status](r, 200, "42/drain", `{`+by+`}`).State)
	require.Equal(t, "closed", post[room.Status](r, 200, "42/close", `{`+by+`}`).State)

	// Each change that was possible is in the audit.
	list := post[Records](r, 200, "42/audit", ``).Records
	var verbs []string
	for _, one := range list {
		verbs = append(verbs, one.Verb)
		require.Equal(t, "ann (api) for eve", one.By)
		require.Equal(t, "ticket 4711", one.Why)
	}
	require.Equal(t, []string{"open", "hold", "resume", "set", "set", "message", "kick", "drain", "close"}, verbs)
	page := post[Records](r, 200, "42/audit", `{"after":"`+list[5].ID+`","limit":1}`).Records
	require.Equal(t, list[6:7], page)
}

func TestAnOperatorFindsTheShopOfALease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	require.NoError(t, r.rooms.Create(ctx, "42"))
	require.NoError(t, r.rooms.SetCapacity(ctx, "42", 1))
	r.enter("ann")
	require.Eventually(t, func() bool {
		_, err := r.rooms.Tick(ctx, "42")
		p, failed := r.rooms.Status(ctx, "42", "ann")
		return err == nil && failed == nil && p.State == room.Ready
	}, 2*time.Minute, 5*time.Millisecond)
	leases, err := r.rooms.Claim(ctx, "42", "broker-1", []room.Sign{{User: "ann"}})
	require.NoError(t, err)
	require.Empty(t, post[User](r, 200, "42/find", `{"user":"ann"}`).Shop)
	_, err = r.rooms.Verify(room.WithShop(ctx, "web"), "42", "ann", leases[0].JTI, "session")
	require.NoError(t, err)
	require.Equal(t, "web", post[User](r, 200, "42/find", `{"user":"ann"}`).Shop)
	_, err = r.rooms.Finish(room.WithShop(ctx, "web"), "42", "ann", leases[0].JTI, "session", true)
	require.NoError(t, err)
	found := post[User](r, 200, "42/find", `{"user":"ann"}`)
	require.Empty(t, found.Shop, "the lease has ended")
	require.Contains(t, string(found.Memory), `"shop":"web"`)
}

func TestOnlyAnOperatorMayChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer the credential", "Basic " + credential, credential} {
		status, text := r.request("42/open", `{"by":"eve","why":"x"}`, authorization)
		require.Equal(t, 401, status, text)
	}
	_, err := r.rooms.RoomStatus(t.Context(), "42")
	require.ErrorIs(t, err, room.ErrUnknown)
}

// The audit names the owner of the token that was presented, whatever the request says about a person.
func TestTheAuditNamesTheOperatorOfTheToken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, one := range [][2]string{
		{credential, `{"why":"x","capacity":5}`}, {another, `{"why":"x"}`},
		{another, `{"by":"ann (api)","why":"x"}`}, {credential, `{"by":" ","why":"x"}`},
	} {
		status, text := r.request("42/open", one[1], "Bearer "+one[0])
		require.Equal(t, 200, status, text)
	}
	var by []string
	for _, one := range post[Records](r, 200, "42/audit", ``).Records {
		by = append(by, one.By)
	}
	require.Equal(t, []string{"ann (api)", "ben (api)", "ben (api) for ann (api)", "ann (api)"}, by)
}

// A command has no token: the audit believes the name that it gives, so there must be one.
func TestAChangeWithoutATokenNeedsAName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := Do(t.Context(), r.rooms, "42", room.Open, Request{Why: "x"})
	require.ErrorContains(t, err, "by: must have 1 to 200 characters")
	_, err = Do(t.Context(), r.rooms, "42", room.Open, Request{By: "eve", Why: "x"})
	require.NoError(t, err)
	list, err := r.rooms.Audit(t.Context(), "42", "", 10)
	require.NoError(t, err)
	require.Equal(t, "eve", list[0].By)
}

func TestBadRequestsChangeNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, tc := range map[string]struct {
		path, body string
		status     int
		text       string
	}{
		"another verb":        {"42/destroy", `{}`, 404, "unknown_verb"},
		"the demo":            {"42/demo", `{}`, 404, "unknown_verb"},
		"a long name":         {"42/open", `{"by":"` + strings.Repeat("e", 201) + `","why":"x"}`, 400, "by: must have"},
		"another operator":    {"42/open", `{"operator":"eve","why":"x"}`, 400, "operator"},
		"no reason":           {"42/open", `{"by":"eve","why":" "}`, 400, "why: must have"},
		"a control sign":      {"42/open", `{"by":"eve\u001b[2J","why":"x"}`, 400, "by: must have printable characters"},
		"two lines":           {"42/open", `{"by":"eve","why":"x\ny"}`, 400, "why: must have printable characters"},
		"an end that is over": {"42/open", `{"by":"eve","why":"x","closesAt":2000}`, 400, "closes_at must be in the future"},
		"an early end":        {"42/open", `{"by":"eve","why":"x","opensAt":2000,"closesAt":2000}`, 400, "closes_at: must be after opens_at"},
		"no JSON":             {"42/open", `open`, 400, "bad_body"},
		"an unknown field":    {"42/open", `{"by":"eve","why":"x","seats":1}`, 400, "seats"},
		"negative capacity":   {"42/open", `{"by":"eve","why":"x","capacity":-1}`, 400, "capacity: must be"},
		"another mode":        {"42/open", `{"by":"eve","why":"x","mode":"vip"}`, 400, "mode: must be"},
		"a limit with hold":   {"42/hold", `{"by":"eve","why":"x","capacity":1}`, 400, "capacity: not with hold"},
		"no message":          {"42/message", `{"by":"eve","why":"x"}`, 400, "message: is missing"},
		"no user":             {"42/kick", `{"by":"eve","why":"x"}`, 400, "user: must be"},
		"an event of signs":   {"a%7Db/open", `{"by":"eve","why":"x"}`, 400, "event: must be"},
		"after no record":     {"42/audit", `{"after":"yesterday"}`, 400, "after: must be the id of a record"},
		"too many records":    {"42/audit", `{"limit":100000}`, 400, "limit: must be"},
	} {
		status, text := r.request(tc.path, tc.body, "Bearer "+credential)
		require.Equal(t, tc.status, status, "%s: %s", name, text)
		require.Contains(t, text, tc.text, name)
	}
	events, err := r.rooms.Events(t.Context())
	require.NoError(t, err)
	require.Empty(t, events)
	require.NoError(t, r.server.Stop(t.Context()))
	require.Equal(t, "unavailable", post[refused](r, 503, "42/status", ``).Error)
}
