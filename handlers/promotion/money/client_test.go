package money_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

func TestLookup(t *testing.T) {
	t.Parallel()
	sim := newSim(t, simulator.Config{})
	client := newClient(t, sim.URL(), nil)
	require.Equal(t, money.NoCharge, client.Lookup(t.Context(), "POINT:1:2").Class)
	paid := client.Charge(t.Context(), charge("POINT:1:2"))
	require.Equal(t, money.Paid, paid.Class)
	found := client.Lookup(t.Context(), "POINT:1:2")
	require.Equal(t, money.Paid, found.Class)
	require.Equal(t, paid.TransactionKey, found.TransactionKey)

	elsewhere := newClient(t, sim.URL()+"/nowhere", nil)
	require.Equal(t, money.Misconfigured, elsewhere.Lookup(t.Context(), "POINT:1:2").Class, "a 404 of another server is no answer")
}

func TestKeysThatCanNotTravel(t *testing.T) {
	t.Parallel()
	c := newClient(t, "http://127.0.0.1:1", nil)
	for _, key := range []string{"", "a b", "a\nb", "a/b", "..", "é", strings.Repeat("k", 129)} {
		a := c.Charge(t.Context(), charge(key))
		require.Equal(t, money.Rejected, a.Class)
		require.ErrorContains(t, a.Err, "the idempotency key can't be sent")
		require.Equal(t, money.Rejected, c.Lookup(t.Context(), key).Class)
	}
	require.True(t, c.Ready())
}

func TestAWrongConfigIsRefused(t *testing.T) {
	t.Parallel()
	for _, cfg := range []oncehttp.Config{{}, oncehttp.DefaultConfig()} {
		_, err := money.New(cfg, nil)
		require.ErrorContains(t, err, "money: ")
		require.ErrorContains(t, err, "url: must be set")
	}
	cfg := oncehttp.DefaultConfig()
	cfg.URL, cfg.CAFile = "https://127.0.0.1:1", "/does/not/exist"
	_, err := money.New(cfg, nil)
	require.ErrorContains(t, err, "ca_file")
}

// The token of a charge is fetched with the client's credentials.
func TestAChargeHasAFetchedToken(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token":
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"access_token":"fetched","token_type":"bearer"}`)
		case r.Header.Get("Authorization") != "Bearer fetched":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			io.WriteString(w, `{"transactionKey":"t-1"}`)
		}
	}))
	defer s.Close()
	client := newClient(t, s.URL, func(cfg *oncehttp.Config) {
		cfg.OAuth2 = httpclient.OAuth2{TokenURL: s.URL + "/token", ClientID: "millrace", ClientSecret: setting.NewSecret("s3cret")}
	})
	require.Equal(t, money.Paid, client.Charge(t.Context(), charge("POINT:1:1")).Class)
}

// The Money API has idempotency keys, so a request whose reused connection was dead is sent again at once.
func TestAChargeIsReplayedOnADeadConnection(t *testing.T) {
	t.Parallel()
	for range 10 { // net/http does not reuse each connection on a busy machine
		var dead, second atomic.Bool
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !second.Load() || r.Context().Value(first{}) == nil {
				io.WriteString(w, `{"transactionKey":"t-1"}`)
				return
			}
			dead.Store(true)
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}))
		s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
			if second.Load() {
				return ctx
			}
			return context.WithValue(ctx, first{}, true)
		}
		s.Start()
		client := newClient(t, s.URL, nil)
		require.Equal(t, money.Paid, client.Charge(t.Context(), charge("POINT:1:2")).Class)
		second.Store(true)
		a := client.Charge(t.Context(), charge("POINT:1:3"))
		s.Close()
		if dead.Load() {
			require.Equal(t, money.Paid, a.Class, a.Text)
			return
		}
	}
	require.FailNow(t, "the connection was never reused")
}

// first marks the requests of the first connection.
type first struct{}
