package oncehttp

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/millrace-io/millrace/plugins/once"
)

// The placeholders in the path of a call.
const (
	placeKey   = "{key}"
	placeGroup = "{group}"
	placeID    = "{id}"
)

// maxTargets bounds how many paths are remembered. A caller that writes ids into its paths has more, and
// they are read again at each call.
const maxTargets = 1000

// CheckPath returns why the path of a call, with its placeholders, can't be one below a URL.
func CheckPath(path string) error {
	_, err := (&targets{base: &url.URL{Scheme: "https", Host: "localhost"}}).request(http.MethodGet, path, once.Key{Group: "group", ID: "id"}, "key")
	return err
}

// target is where the calls of one path go. path and query are escaped, and may have placeholders.
type target struct {
	path, query string
	template    *http.Request // without placeholders: the same for all calls
}

// targets remembers what the paths of calls mean.
type targets struct {
	base  *url.URL
	known sync.Map // method and path → target
	count atomic.Int64
}

// request returns a request without context, headers and body.
func (t *targets) request(method, path string, k once.Key, key string) (*http.Request, error) {
	if strings.ContainsAny(key, "%/?#") && strings.Contains(path, key) {
		return nil, fmt.Errorf("the path has the idempotency key in it, which has to be escaped: write %s in its place", placeKey)
	}
	at, err := t.target(method, path)
	if err != nil || at.template != nil {
		return at.template, err
	}
	escaped, err := fill(at.path, url.PathEscape, k, key)
	if err != nil {
		return nil, err
	}
	query, err := fill(at.query, url.QueryEscape, k, key)
	if err != nil {
		return nil, err
	}
	return t.made(method, escaped, query)
}

func (t *targets) target(method, path string) (target, error) {
	name := method + path
	if known, ok := t.known.Load(name); ok {
		return known.(target), nil
	}
	var at target
	at.path, at.query, _ = strings.Cut(path, "?")
	switch {
	case !strings.HasPrefix(at.path, "/"), strings.HasPrefix(at.path, "//"), strings.Contains(path, "#"):
		return at, fmt.Errorf("the path %q must begin with one slash and have no fragment", path)
	case strings.ContainsFunc(path, func(c rune) bool { return c <= ' ' || c > '~' }):
		return at, fmt.Errorf("the path %q must be escaped: it has a character that is not printable ASCII", path)
	}
	if !strings.ContainsAny(path, "{}") {
		made, err := t.made(method, at.path, at.query)
		if err != nil {
			return at, err
		}
		at.template = made
	}
	if t.count.Add(1) <= maxTargets {
		t.known.Store(name, at)
	}
	return at, nil
}

// made returns a request of an escaped path and query.
func (t *targets) made(method, escaped, query string) (*http.Request, error) {
	u := *t.base
	escaped = u.EscapedPath() + escaped
	plain, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawPath, u.RawQuery = plain, escaped, query
	return &http.Request{Method: method, URL: &u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}, nil
}

// fill puts the values in place of their placeholders.
func fill(text string, escape func(string) string, k once.Key, key string) (string, error) {
	for _, place := range []struct{ name, value string }{{placeKey, key}, {placeGroup, k.Group}, {placeID, k.ID}} {
		if !strings.Contains(text, place.name) {
			continue
		}
		switch place.value {
		case "", ".", "..":
			return "", fmt.Errorf("%s in the path is %q, which can't be an element of it", place.name, place.value)
		}
		text = strings.ReplaceAll(text, place.name, escape(place.value))
	}
	if strings.ContainsAny(text, "{}") {
		return "", fmt.Errorf("the path %q has a brace, and no placeholder but %s, %s and %s is known", text, placeKey, placeGroup, placeID)
	}
	return text, nil
}
