package shop

import (
	"encoding/json"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

// names returns the shop of the lease that a user has, and of the one that has ended, as an operator finds them.
func (r *rig) names(user string) (now, before string) {
	r.t.Helper()
	d, err := r.rooms.Find(r.t.Context(), "42", user)
	require.NoError(r.t, err)
	var memory struct{ Shop string }
	if d.Memory != nil {
		require.NoError(r.t, json.Unmarshal(d.Memory, &memory))
	}
	return d.Shop, memory.Shop
}

// Every shop has a name, which is found at the lease, in the log and in the metrics. It decides nothing: a shop that
// changes its token by a second name goes on with the turns that it has.
func TestTheShopOfARequestIsNamed(t *testing.T) {
	t.Parallel()
	const web, app = "Bearer " + credential, "Bearer another credential"
	r := newRig(t)
	raw := r.admit("ann")
	send := func(verb, header, more string) (int, string) {
		t.Helper()
		return r.post("/events/42/entry/"+verb, `{"token":"`+raw+`","by":"s1"`+more+`}`, header)
	}
	is := func(wantNow, wantBefore string) {
		t.Helper()
		now, before := r.names("ann")
		require.Equal(t, wantNow, now)
		require.Equal(t, wantBefore, before)
	}
	is("", "")
	r.want(200, "ADMITTED")(send("verify", web, ""))
	is("web", "")
	p, err := r.rooms.Status(t.Context(), "42", "ann")
	require.NoError(t, err)
	r.want(200, "ADMITTED")(send("extend", app, `,"until":`+strconv.FormatInt(p.Until+1000, 10)))
	is("app", "")
	r.want(200, "ADMITTED")(send("verify", web, ""))
	r.want(200, "ABANDONED")(send("finish", app, `,"result":"abandoned"`))
	is("", "app")
	r.want(200, "SOLD")(send("finish", web, `,"result":"sold"`)) // late, with a free slot
	is("", "web")

	ok := func(shop, request string) float64 {
		return testutil.ToFloat64(r.shop.requests.WithLabelValues(shop, request, "ok"))
	}
	require.EqualValues(t, 2, ok("web", "verify"))
	require.EqualValues(t, 1, ok("app", "extend"))
	require.EqualValues(t, 1, ok("app", "finish"))
	require.Regexp(t, `msg="request of a shop done" shop=app request=finish event=42 lease=\S+ session=s1 state=ABANDONED`, r.log.String())

	r.want(401, "no_shop")(send("verify", "Bearer of nobody in particular", ""))
	require.Contains(t, r.log.String(), `msg="request of a shop refused" shop="" request=verify answer=no_shop`)
	require.NotContains(t, r.log.String(), credential)
	require.NotContains(t, r.log.String(), "nobody in particular")
}

// What is remembered of a turn names its shop, also when an operator has ended it, and that of an earlier turn does not
// stay: a user who is promoted again and leaves had no shop then.
func TestAnEndedTurnNamesItsShopOnly(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(*rig){
		"promoted": func(r *rig) { r.admit("ann") },
		"waiting": func(r *rig) {
			_, err := r.rooms.Enter(r.t.Context(), "42", "ann", "broker", 0)
			require.NoError(r.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.want(200, "ADMITTED")(r.verify(r.admit("ann"), "s1"))
			_, err := r.rooms.Control(t.Context(), "42", room.Change{Verb: room.Kick, By: "eve", Why: "x", User: "ann"})
			require.NoError(t, err)
			now, before := r.names("ann")
			require.Empty(t, now)
			require.Equal(t, "web", before)
			again(r)
			_, before = r.names("ann")
			require.Equal(t, "web", before)
			_, err = r.rooms.Leave(t.Context(), "42", "ann", "left")
			require.NoError(t, err)
			_, before = r.names("ann")
			require.Empty(t, before)
		})
	}
}
