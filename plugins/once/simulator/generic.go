package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// OnceCommand returns `once simulator`: the far side of any kind of effects, which the flags describe.
func OnceCommand() *cobra.Command {
	var g generic
	cmd := &cobra.Command{
		Use:   "simulator",
		Short: "Run a simulated API with faults and a book",
		Long: `Run a simulated API until it is interrupted, in place of the one that a kind of effects calls.

Each POST, PUT or PATCH is executed once per idempotency key and answered with a receipt. The flags say how the API
names things and how it fails; PUT /_sim/faults changes the faults while it runs, and GET /_sim/faults shows them.
GET /_sim/journal?after=&limit= has what was executed, GET /_sim/journal?format=book the same as a book for
"once reconcile", and GET /_sim/summary the totals.`,
		Example: `  millrace once simulator --post /v1/invoices --lookup /v1/invoices/{key}
  millrace once simulator --fail-rate 0.2 --timeout-rate 0.1 --per-second 20`,
	}
	f := cmd.Flags()
	f.StringArrayVar(&g.posts, "post", nil, "`path` of requests; {key} in it is the idempotency key, and a * at its end any rest; repeatable; without it every path")
	f.StringVar(&g.lookup, "lookup", "", "`path` of lookups, with {key}; without it there are none")
	f.StringVar(&g.header, "key-header", "Idempotency-Key", "header of the idempotency key")
	f.BoolVar(&g.forgets, "forget-keys", false, "execute every request, also one with a known key")
	f.StringVar(&g.receipt, "receipt-field", "id", "member of the good answer that has the receipt")
	f.StringVar(&g.sum, "sum-field", "", "path of the sum in the body, such as order.cents, for the book")
	return Command(cmd, "simulator", g.api)
}

// generic is an API that is described by flags.
type generic struct {
	posts                        []string
	lookup, header, receipt, sum string
	forgets                      bool
}

func (g *generic) api() (API, error) {
	if g.header == "" || g.receipt == "" {
		return API{}, errors.New("--key-header and --receipt-field must not be empty")
	}
	if len(g.posts) == 0 {
		g.posts = []string{"/*"}
	}
	posts := make([]pattern, len(g.posts))
	for i, text := range g.posts {
		var err error
		if posts[i], err = parsePattern(text); err != nil {
			return API{}, fmt.Errorf("--post: %w", err)
		}
	}
	a := API{ForgetsKeys: g.forgets, Done: doneWith(g.receipt), Sums: g.sum != ""}
	a.Operation = func(r *http.Request) (key string, check Check) {
		if !slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch}, r.Method) {
			return "", nil
		}
		for _, p := range posts {
			if key, ok := p.match(r.URL.EscapedPath()); ok {
				if !p.hasKey {
					key = r.Header.Get(g.header)
				}
				return key, g.check
			}
		}
		return "", nil
	}
	if g.lookup == "" {
		return a, nil
	}
	lookup, err := parsePattern(g.lookup)
	if err == nil && !lookup.hasKey {
		err = fmt.Errorf("%q has no {key}", g.lookup)
	}
	if err != nil {
		return API{}, fmt.Errorf("--lookup: %w", err)
	}
	a.Lookup = func(r *http.Request) (key string, ok bool) {
		if r.Method != http.MethodGet {
			return "", false
		}
		return lookup.match(r.URL.EscapedPath())
	}
	return a, nil
}

// check takes any body, unless it has to find a sum in it.
func (g *generic) check(body []byte) (Order, error) {
	if g.sum == "" {
		return Order{}, nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return Order{}, fmt.Errorf("the body is no JSON: %w", err)
	}
	for name := range strings.SplitSeq(g.sum, ".") {
		object, _ := value.(map[string]any)
		value = object[name]
	}
	n, _ := value.(json.Number) // empty, which is no number, for anything else
	sum, err := n.Int64()
	if err != nil {
		return Order{}, fmt.Errorf("the body has no whole number at %s", g.sum)
	}
	return Order{Sum: sum}, nil
}

// pattern is a path in which {key} stands for one part, or a * at the end for any rest.
type pattern struct {
	before, after string
	hasKey, rest  bool
}

func parsePattern(text string) (p pattern, err error) {
	p.before, p.after, p.hasKey = strings.Cut(text, "{key}")
	if !p.hasKey {
		p.before, p.rest = strings.CutSuffix(text, "*")
	}
	if !strings.HasPrefix(text, "/") || strings.ContainsAny(p.before+p.after, "{}*?") {
		return p, fmt.Errorf("a path begins with / and has at most one {key}, or a * at its end, got %q", text)
	}
	return p, nil
}

// match returns the key of an escaped path.
func (p pattern) match(path string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(path, p.before)
	if !ok || p.rest {
		return "", ok
	}
	if rest, ok = strings.CutSuffix(rest, p.after); !ok || !p.hasKey {
		return "", ok && rest == ""
	}
	key, err := url.PathUnescape(rest)
	return key, err == nil && !strings.Contains(rest, "/")
}
