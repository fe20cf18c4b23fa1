package broker_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// operator returns a function that sends a change of the room to the API of the operators.
func (w *world) operator() func(verb, body string) {
	const credential = "credential of an operator"
	mux := http.NewServeMux()
	mux.Handle(admin.Pattern, admin.Handler(w.rooms, map[string]setting.Secret{"eve": setting.NewSecret(credential)}, slog.New(slog.DiscardHandler)))
	server := httptest.NewServer(mux)
	w.t.Cleanup(server.Close)
	return func(verb, body string) {
		w.t.Helper()
		r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, server.URL+"/api/v1/rooms/"+w.event+"/"+verb, strings.NewReader(body))
		require.NoError(w.t, err)
		r.Header.Set("Authorization", "Bearer "+credential)
		answer, err := server.Client().Do(r)
		require.NoError(w.t, err)
		require.NoError(w.t, answer.Body.Close())
		require.Equal(w.t, http.StatusOK, answer.StatusCode)
	}
}

// An operator sets the capacity below the number of admitted users. They keep their turns, and no
// user is promoted until enough of them have ended. Then the promotion goes on, in order.
func TestACapacityBelowTheAdmittedUsers(t *testing.T) {
	each(t, func(t *testing.T, s redistest.Server) {
		const users = 20
		w := newWorld(t, s)
		for i := range 2 {
			w.start(fmt.Sprint("broker-", i), "broker")
			w.start(fmt.Sprint("dispatcher-", i), "dispatcher")
		}
		change := w.operator()
		change("open", `{"by":"eve","why":"test","capacity":10,"concurrency":10}`)
		var guests []*guest
		for i := range users {
			guests = append(guests, w.guest(fmt.Sprint("user-", i)).run().wait("connected *"))
		}
		slices.SortFunc(guests, func(a, b *guest) int { return int(a.idx() - b.idx()) })
		next := 0
		promoted := func(n int) { // the next ones, and no other
			t.Helper()
			for range n {
				guests[next].wait("promoted")
				next++
			}
			w.ticks(w.event, 3)
			require.EqualValues(t, next, w.status().Promoted)
		}
		promoted(10)
		used := w.status().Sold + w.status().Ready + w.status().Admitted
		ends := func(result string, from, to int) {
			t.Helper()
			for _, g := range guests[from:to] {
				a := w.mustShop("finish", map[string]string{"token": g.ticket(0).Token, "by": g.name, "result": result})
				require.Equal(t, http.StatusOK, a.status, a.body)
				got := w.status()
				require.LessOrEqual(t, got.Sold+got.Ready+got.Admitted, used)
				used = got.Sold + got.Ready + got.Admitted
			}
		}

		change("set", `{"by":"eve","why":"test","capacity":4}`)
		promoted(0)
		got := w.status()
		require.Equal(t, []int64{4, 10, 0}, []int64{got.Capacity, got.Admitted, got.Free})
		for _, g := range guests[:10] {
			a := w.mustShop("verify", map[string]string{"token": g.ticket(0).Token, "by": g.name})
			require.Equal(t, http.StatusOK, a.status, a.body)
			require.Equal(t, 1, g.count("promoted"), "the lease is as it was")
		}
		ends("abandoned", 0, 3)
		ends("sold", 3, 5)
		promoted(0) // 2 sold, 5 leases
		ends("abandoned", 5, 8)
		promoted(0) // 2 sold, 2 leases
		ends("abandoned", 8, 9)
		promoted(1)
		change("set", `{"by":"eve","why":"test","capacity":6}`)
		promoted(2)
		change("set", `{"by":"eve","why":"test","capacity":0}`)
		promoted(0)
		change("set", `{"by":"eve","why":"test","capacity":10}`)
		promoted(4)
		got = w.status()
		require.Equal(t, []int64{2, 8, 0, 3}, []int64{got.Sold, got.Admitted, got.Free, got.Waiting})
		change("set", `{"by":"eve","why":"test","capacity":100}`)
		promoted(2) // 10 at once
	})
}
