// Package shopmiddleware lets only admitted users of a waiting room into a ticket shop. It is for the shop's
// own program: it imports nothing of Millrace.
package shopmiddleware

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
)

// Errors of Check, Verify, Extend and Finish. The middleware answers with the status of each.
var (
	// ErrNoEntry means that the token is absent, forged or expired (401). Send the user to the
	// waiting room.
	ErrNoEntry = errors.New("gate: no valid entry token")
	// ErrOtherEvent means that the token is for another event (403).
	ErrOtherEvent = errors.New("gate: the entry token is for another event")
	// ErrUsed means that another session uses the token, or that the sale can't be stored (409).
	ErrUsed = errors.New("gate: the entry is used")
	// ErrNotVerified means that Extend was called before Verify (409). Verify the token first.
	ErrNotVerified = errors.New("gate: no session has verified the entry token")
	// ErrEnded means that the entry was left, finished or expired (410).
	ErrEnded = errors.New("gate: the entry has ended")
	// ErrUnavailable means that the waiting room did not answer (503). Try again.
	ErrUnavailable = errors.New("gate: the waiting room is unavailable")
)

// Options configure a Gate.
type Options struct {
	// URL is the address of the waiting room's brokers, such as https://rooms.example.
	URL string
	// ShopToken is that of this shop in plugins.waitingroom.shop_tokens, for Verify, Extend and Finish.
	ShopToken string
	// Event returns the event of a request.
	Event func(*http.Request) string
	// Token returns the entry token of a request. Nil: that of the header Authorization, or of the
	// query token.
	Token func(*http.Request) string
	// Session returns the shop session of a request. The middleware then verifies each request at
	// the waiting room, which binds the entry to the session. For HEAD, which programs that check links
	// send, and with a nil Session, it checks the signature and the end of the token alone.
	Session func(*http.Request) string
	// Client sends the requests to the waiting room. Nil: one with a limit of 3 s. Redirects are not
	// followed unless the client has a CheckRedirect: they would take the ShopToken to another server.
	Client *http.Client
}

// Entry is an admitted user.
type Entry struct {
	Event  string
	UserID string
	JTI    string    // names the lease
	Until  time.Time // its end
}

// Gate checks entry tokens. Safe for concurrent use.
type Gate struct {
	opts Options
	base string
	keys keys
}

const (
	callTimeout = 3 * time.Second
	maxAnswer   = 1 << 20 // bytes
)

// New returns a gate. It fetches the public keys at the first request.
func New(o Options) (*Gate, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("gate: URL must be http:// or https:// with a host")
	}
	if o.Event == nil {
		return nil, errors.New("gate: Event must be set")
	}
	if o.Session != nil && o.ShopToken == "" {
		return nil, errors.New("gate: ShopToken must be set with Session")
	}
	if o.Token == nil {
		o.Token = bearer
	}
	if o.Client == nil {
		o.Client = &http.Client{Timeout: callTimeout}
	}
	if o.Client.CheckRedirect == nil {
		client := *o.Client
		client.CheckRedirect, o.Client = noRedirect, &client
	}
	g := &Gate{opts: o, base: strings.TrimRight(o.URL, "/")}
	g.keys.fetch = g.fetchKeys
	return g, nil
}

func noRedirect(to *http.Request, _ []*http.Request) error {
	return fmt.Errorf("a redirect to %s://%s is not followed: set URL to the address that answers", to.URL.Scheme, to.URL.Host)
}

func bearer(r *http.Request) string {
	if scheme, raw, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(raw)
	}
	return r.URL.Query().Get("token")
}

type entryKey struct{}

// EntryOf returns the entry that the middleware accepted.
func EntryOf(ctx context.Context) (Entry, bool) {
	e, ok := ctx.Value(entryKey{}).(Entry)
	return e, ok
}

// Middleware calls next for requests with a valid entry token, and refuses all others.
func (g *Gate) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event, raw := g.opts.Event(r), g.opts.Token(r)
		entry, err := g.admit(r, event, raw)
		if err != nil {
			refuse(w, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), entryKey{}, entry)))
	})
}

// admit lets the waiting room decide about the end of a session: it has the clock of the room.
func (g *Gate) admit(r *http.Request, event, raw string) (Entry, error) {
	if g.opts.Session == nil || r.Method == http.MethodHead {
		return g.Check(r.Context(), event, raw)
	}
	if _, err := g.signed(r.Context(), event, raw); err != nil {
		return Entry{}, err
	}
	return g.Verify(r.Context(), event, raw, g.opts.Session(r))
}

func refuse(w http.ResponseWriter, err error) {
	status, word := http.StatusServiceUnavailable, "unavailable"
	switch {
	case errors.Is(err, ErrNoEntry):
		status, word = http.StatusUnauthorized, "no_entry"
	case errors.Is(err, ErrOtherEvent):
		status, word = http.StatusForbidden, "other_event"
	case errors.Is(err, ErrUsed):
		status, word = http.StatusConflict, "used"
	case errors.Is(err, ErrEnded):
		status, word = http.StatusGone, "ended"
	default:
		w.Header().Set("Retry-After", "5")
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// A client that is gone needs no answer.
	_ = json.NewEncoder(w).Encode(map[string]string{"error": word})
}

// Verify returns the entry of a token that the waiting room accepts for a session of the shop. Call
// it before the sale: a valid signature does not show that the lease was left, kicked or finished.
// The same session may verify again.
func (g *Gate) Verify(ctx context.Context, event, raw, session string) (Entry, error) {
	var answer answered
	err := g.call(ctx, event, "verify", map[string]any{"token": raw, "by": session}, &answer)
	return answer.entry(event), err
}

// Extend asks for a later end of an entry that the same session has verified, for instance when the
// payment begins: Entry.Until of Verify, and as much time as the payment may take. The entry that it
// returns has the end that counts, which is earlier than requested when the waiting room allows no
// longer turn (plugins.waitingroom.max_turn). The end never moves back, so the call may be repeated.
//
// The token of the user keeps its first end, which only the waiting room overrules. After it, Check
// and a middleware without Options.Session refuse the token.
func (g *Gate) Extend(ctx context.Context, event, raw, session string, until time.Time) (Entry, error) {
	var answer answered
	err := g.call(ctx, event, "extend", map[string]any{"token": raw, "by": session, "until": until.UnixMilli()}, &answer)
	return answer.entry(event), err
}

// answered is the answer to Verify and Extend.
type answered struct {
	UserID string `json:"userId"`
	JTI    string `json:"jti"`
	Until  int64  `json:"until"` // ms of the waiting room's clock
}

func (a answered) entry(event string) Entry {
	return Entry{Event: event, UserID: a.UserID, JTI: a.JTI, Until: time.UnixMilli(a.Until)}
}

// Finish ends the entry: the seat is sold, or the user has abandoned the purchase. The session is the
// one that has verified the entry; it may be empty when none has. A repeated call with the same
// result succeeds. ErrUsed means that another session has the entry, or that the lease had ended and
// its seat is gone: the text of the error says which.
func (g *Gate) Finish(ctx context.Context, event, raw, session string, sold bool) error {
	result := "abandoned"
	if sold {
		result = "sold"
	}
	return g.call(ctx, event, "finish", map[string]any{"token": raw, "by": session, "result": result}, nil)
}

func (g *Gate) call(ctx context.Context, event, verb string, body map[string]any, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.base+"/events/"+url.PathEscape(event)+"/entry/"+verb, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+g.opts.ShopToken)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header)) // the waiting room continues the trace of the shop
	status, text, err := g.do(r)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case status == http.StatusOK:
		if answer == nil {
			return nil
		}
		if err := json.Unmarshal(text, answer); err != nil {
			return fmt.Errorf("%w: the answer of %s is not JSON: %w", ErrUnavailable, verb, err)
		}
		return nil
	}
	var refused struct{ Error, Message string }
	_ = json.Unmarshal(text, &refused) // the status is enough
	cause := map[int]error{
		http.StatusUnauthorized: ErrNoEntry, http.StatusForbidden: ErrOtherEvent, http.StatusNotFound: ErrEnded,
		http.StatusConflict: ErrUsed, http.StatusGone: ErrEnded,
	}[status]
	switch {
	case cause == nil || refused.Error == "no_shop":
		cause = ErrUnavailable
	case refused.Error == "not_verified":
		cause = ErrNotVerified
	}
	return fmt.Errorf("%w: %s: status %d: %s", cause, verb, status, refused.Message)
}

func (g *Gate) do(r *http.Request) (status int, body []byte, err error) {
	answer, err := g.opts.Client.Do(r)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // the shop logs it, and the URL may hold a user
		}
		return 0, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	return answer.StatusCode, body, err
}
