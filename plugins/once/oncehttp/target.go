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
	return CheckCall(path, once.Key{Group: "group", ID: "id"}, "key")
}

// CheckCall returns why an effect with these keys can't be called for, or looked up, at a path: because of the path, or of
// what would be in place of its placeholders.
func CheckCall(path string, k once.Key, idempotency string) error {
	_, err := (&targets{base: &url.URL{Scheme: "https", Host: "localhost"}}).request(http.MethodGet, path, k, idempotency)
	return err
}

// unfitError says that the keys of one effect can't stand in a path that others can use.
type unfitError struct{ name, value string }

func (e *unfitError) Error() string {
	return fmt.Sprintf("%s in the path is %q, which can't be an element of it", e.name, e.value)
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
	at, err := t.target(method, path, key)
	if err != nil || at.template != nil {
		return at.template, err
	}
	if err := fits(at.path, k, key); err != nil {
		return nil, err
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

func (t *targets) target(method, path, key string) (target, error) {
	name := method + path
	if known, ok := t.known.Load(name); ok {
		return known.(target), nil // the path of another effect, too, so a key that is in it is there by chance
	}
	var at target
	at.path, at.query, _ = strings.Cut(path, "?")
	switch {
	case strings.ContainsAny(key, "%/?#") && strings.Contains(path, key):
		return at, fmt.Errorf("the path has the idempotency key in it, which has to be escaped: write %s in its place", placeKey)
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

type place struct{ name, value string }

func places(k once.Key, key string) []place {
	return []place{{placeKey, key}, {placeGroup, k.Group}, {placeID, k.ID}}
}

// fits reports a value that would be a whole element of the path, and means another path there.
func fits(path string, k once.Key, key string) error {
	for element := range strings.SplitSeq(path, "/") {
		for _, p := range places(k, key) {
			if element == p.name && (p.value == "" || p.value == "." || p.value == "..") {
				return &unfitError{p.name, p.value}
			}
		}
	}
	return nil
}

// fill puts the values in place of their placeholders.
func fill(text string, escape func(string) string, k once.Key, key string) (string, error) {
	for _, p := range places(k, key) {
		text = strings.ReplaceAll(text, p.name, escape(p.value))
	}
	if strings.ContainsAny(text, "{}") {
		return "", fmt.Errorf("the path %q has a brace, and no placeholder but %s, %s and %s is known", text, placeKey, placeGroup, placeID)
	}
	return text, nil
}
