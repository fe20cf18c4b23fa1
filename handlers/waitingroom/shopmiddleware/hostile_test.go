package shopmiddleware

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"
)

// The token of the shop, and the trust in keys, stay with the configured address.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect) // a POST stays one
	}))
	defer first.Close()
	shared := &http.Client{}
	for name, client := range map[string]*http.Client{"its own client": nil, "a client of the shop": shared} {
		g, err := New(Options{URL: first.URL, ShopToken: "shop", Event: func(*http.Request) string { return "7" }, Client: client})
		require.NoError(t, err)
		_, err = g.Verify(t.Context(), "7", "token", "session")
		require.ErrorIs(t, err, ErrUnavailable, name)
		require.ErrorContains(t, err, "a redirect to "+other.URL+" is not followed")
		_, err = g.fetchKeys(t.Context())
		require.ErrorContains(t, err, "is not followed")
	}
	require.Zero(t, asked.Load())
	require.Nil(t, shared.CheckRedirect, "the client of the shop is unchanged")
}

// The shop logs the errors of its gate, and whoever reads them must not learn what else is in the address.
func TestTheAddressIsInNoError(t *testing.T) {
	t.Parallel()
	away := httptest.NewServer(nil)
	away.Close()
	g, err := New(Options{URL: strings.Replace(away.URL, "://", "://ann:p4ss@", 1) + "/hidden", Event: func(*http.Request) string { return "7" }})
	require.NoError(t, err)
	_, err = g.Verify(t.Context(), "7", "token", "session")
	require.ErrorIs(t, err, ErrUnavailable)
	_, keys := g.fetchKeys(t.Context())
	for _, err := range []error{err, keys} {
		require.ErrorContains(t, err, "connection refused")
		require.NotContains(t, err.Error(), "ann")
		require.NotContains(t, err.Error(), "hidden")
	}
}

func TestOddKeysAreSkipped(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	good, err := json.Marshal(jose.JSONWebKey{Key: r.private.Public(), KeyID: "k1"})
	require.NoError(t, err)
	for _, odd := range []string{
		`{"kty":"AKP","alg":"ML-DSA-44","kid":"odd","pub":"AAAA"}`, `{"kty":"EC","crv":"secp256k1","kid":"odd","x":"AA","y":"AA"}`,
		`{"kty":"RSA","kid":"odd","n":"","e":""}`, `"odd"`,
	} {
		keys, err := parseKeys([]byte(fmt.Sprintf(`{"keys":[%s,%s]}`, odd, good)))
		require.NoError(t, err, odd)
		require.Len(t, keys, 1)
		require.Equal(t, r.private.Public(), keys["k1"])
		_, err = parseKeys([]byte(`{"keys":[` + odd + `]}`))
		require.ErrorContains(t, err, "none of 1 keys", strings.TrimSpace(odd))
	}
	_, err = parseKeys([]byte(`{"keys":[]}`))
	require.Error(t, err)
}
