package oncehttp

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
)

func TestThePathsOfCalls(t *testing.T) {
	t.Parallel()
	k := once.Key{Group: "a:b/c", ID: "100% Ö"}
	key := "invoice:" + k.String()
	require.Equal(t, "invoice:a%3Ab/c:100%25%20%C3%96", key)
	for name, c := range map[string]struct{ base, path, path2, query string }{ // path2 and query are what the far side reads
		"no placeholder":        {"", "/v1/invoices", "/v1/invoices", ""},
		"below a path":          {"/base", "/v1/invoices", "/base/v1/invoices", ""},
		"below an escaped path": {"/b%2Fx", "/v1/invoices", "/b/x/v1/invoices", ""},
		"a query":               {"", "/v1/invoices?mode=once&x=%20", "/v1/invoices", "mode=once&x=%20"},
		"the key in the path":   {"/base", "/v1/by-key/{key}/more", "/base/v1/by-key/" + key + "/more", ""},
		"the key in the query":  {"", "/v1?key={key}", "/v1", "key=" + url.QueryEscape(key)},
		"group and id":          {"", "/{group}/{id}?g={group}", "/a:b/c/100% Ö", "g=a%3Ab%2Fc"},
		"an escaped path":       {"", "/v1/a%2Fb", "/v1/a/b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			base, err := url.Parse("http://127.0.0.1:1" + c.base)
			require.NoError(t, err)
			at := targets{base: base}
			for range 2 { // the second one is remembered
				made, err := at.request(http.MethodGet, c.path, k, key)
				require.NoError(t, err)
				wire := httptest.NewRequest(http.MethodGet, made.URL.RequestURI(), nil)
				require.Equal(t, c.path2, wire.URL.Path)
				require.Equal(t, c.query, wire.URL.RawQuery)
				require.Equal(t, "127.0.0.1:1", made.Host)
			}
		})
	}
	base := &url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	at := targets{base: base}
	made, err := at.request(http.MethodGet, "/v1/by-key/{key}", k, key)
	require.NoError(t, err)
	require.Equal(t, "/v1/by-key/"+url.PathEscape(key), made.URL.RequestURI(), "the slash of the key begins no element")
	for path, want := range map[string]string{
		"v1":           "must begin with one slash",
		"//elsewhere":  "must begin with one slash",
		"":             "must begin with one slash",
		"/v1#x":        "no fragment",
		"/v1/a b":      "must be escaped",
		"/v1?x=Ö":      "must be escaped",
		"/v1?x=\r\nA:": "must be escaped",
		"/v1/%zz":      "invalid URL escape",
		"/v1/{number}": "no placeholder but {key}, {group} and {id} is known",
		"/v1/}":        "no placeholder",
		"/v1/" + key:   "write {key} in its place",
	} {
		at := targets{base: base}
		_, err := at.request(http.MethodGet, path, k, key)
		require.ErrorContains(t, err, want, path)
	}
	for _, bad := range []once.Key{{}, {Group: "..", ID: "1"}} {
		at := targets{base: base}
		_, err := at.request(http.MethodGet, "/v1/{group}", bad, key)
		require.ErrorContains(t, err, "can't be an element of it")
	}
	for path, want := range map[string]string{"/v1/{group}.json": "/v1/...json", "/v1?g={group}": "/v1?g=.."} {
		at := targets{base: base}
		made, err := at.request(http.MethodGet, path, once.Key{Group: "..", ID: "1"}, key)
		require.NoError(t, err)
		require.Equal(t, want, made.URL.RequestURI())
	}
}

// A key that is a part of a path which other effects use as well was not put there by the caller.
func TestAKeyIsInAPathByChance(t *testing.T) {
	t.Parallel()
	at := targets{base: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}
	_, err := at.request(http.MethodPost, "/v1/invoices", once.Key{Group: "acme", ID: "/v1"}, "/v1")
	require.ErrorContains(t, err, "write {key} in its place")
	for _, key := range []string{"17", "/v1"} {
		_, err := at.request(http.MethodPost, "/v1/invoices", once.Key{Group: "acme", ID: key}, key)
		require.NoError(t, err)
	}
}

// An effect whose id can't be in the path ends, and the others of the kind go on.
func TestAnIDThatDoesNotFitThePathIsRejected(t *testing.T) {
	t.Parallel()
	client, _ := openClient(t, "http://127.0.0.1:1")
	a := Post(t.Context(), client, "/v1/{id}", once.Attempt[int]{Idempotency: "k", Key: once.Key{Group: "acme", ID: ".."}})
	require.Equal(t, once.Rejected, a.Class)
	require.False(t, a.General)
	require.Contains(t, a.Text, `{id} in the path is "..", which can't be an element of it`)
	require.Equal(t, once.Rejected, Find(t.Context(), client, "/v1/{id}", once.Lookup{Idempotency: "k", Key: once.Key{Group: "acme", ID: ".."}}).Class)
}

// A caller that writes ids into its paths does not fill the memory.
func TestFewPathsAreRemembered(t *testing.T) {
	t.Parallel()
	at := targets{base: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}}
	for n := range 3 * maxTargets {
		made, err := at.request(http.MethodGet, fmt.Sprint("/v1/", n), once.Key{}, "k")
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("/v1/", n), made.URL.Path)
	}
	remembered := 0
	at.known.Range(func(any, any) bool { remembered++; return true })
	require.Equal(t, maxTargets, remembered)
}

// The path of a call is an author's mistake when it can't be used. It is NotSent and General, because an
// effect must not end by it.
func TestAWrongPathIsNotSent(t *testing.T) {
	t.Parallel()
	client, _ := openClient(t, "http://127.0.0.1:1")
	a := Post(t.Context(), client, "v1", once.Attempt[int]{Idempotency: "k"})
	require.Equal(t, once.NotSent, a.Class)
	require.True(t, a.General)
	require.Contains(t, a.Text, "must begin with one slash")
	require.True(t, client.Ready(), "it says nothing about the far side")
}
