package effects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/web"
)

const (
	askTimeout = 10 * time.Second // of the ledger
	warnEvery  = 10 * time.Second
)

// entrance answers POST /once/{kind} and GET /once/{kind}/{key}.
type entrance struct {
	kinds    []string
	tokens   *web.NamedTokens
	clients  map[string]*client
	rates    *web.Rates // by the name of the client
	once     *once.Plugin
	instance string
	log      *slog.Logger
	sampled  *logs.Throttle
}

// client is whom a token belongs to.
type client struct {
	name  string
	kinds []string // that it may ask for
}

func newEntrance(c HTTP, o *once.Plugin, instance string, log *slog.Logger) *entrance {
	e := &entrance{kinds: c.Kinds, once: o, instance: instance, log: log, rates: &web.Rates{Most: c.RequestsPerMinute, Window: time.Minute}, sampled: logs.NewThrottle(warnEvery)}
	e.clients = map[string]*client{}
	tokens := map[string]setting.Secret{}
	for name, of := range c.Clients {
		tokens[name] = of.Token
		from := &client{name: name}
		for _, kind := range c.Kinds {
			if of.may(kind) {
				from.kinds = append(from.kinds, kind)
			}
		}
		e.clients[name] = from
	}
	e.tokens = web.NewNamedTokens(func(name string) string { return "plugins.effects.http.clients." + name + ".token" }, log, tokens)
	return e
}

// order is the body of a request.
type order struct {
	Key       part            `json:"key"`
	Group     part            `json:"group"`
	Payload   json.RawMessage `json:"payload"`
	NotBefore time.Time       `json:"not_before"`
}

// part is a part of a key: a text, or a whole number as it is written, of any size.
type part string

// UnmarshalJSON implements json.Unmarshaler.
func (p *part) UnmarshalJSON(value []byte) error {
	if wholeNumber.Match(value) {
		*p = part(value)
		return nil
	}
	if json.Unmarshal(value, (*string)(p)) != nil {
		return fmt.Errorf("key and group must be a text or a whole number, not %s", describe(value))
	}
	return nil
}

// answer is the body of a 200 and a 202.
type answer struct {
	Kind       string           `json:"kind"`
	Group      string           `json:"group"`
	Key        string           `json:"key"`
	State      rules.State      `json:"state"`
	GroupState rules.GroupState `json:"group_state,omitempty"` // not of a new effect
	Receipt    string           `json:"receipt,omitempty"`     // the API's name of the effect
	Attempts   int              `json:"attempts"`              // sends that count
	Class      string           `json:"class,omitempty"`       // of the last answer that was not done
	Error      string           `json:"error,omitempty"`       // its text
}

// write sends what is known of an effect, with the address at which a client asks for it again.
func write(w http.ResponseWriter, status int, kind string, k once.Key, s once.State) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Location", "/once/"+kind+"/"+url.PathEscape(k.ID)+"?group="+url.QueryEscape(k.Group))
	w.WriteHeader(status)
	if !saidByTheAPI(s) {
		s.Error = ""
	}
	// A client that is gone needs no answer.
	_ = json.NewEncoder(w).Encode(answer{
		Kind: kind, Group: k.Group, Key: k.ID, State: s.State, GroupState: s.Group, Receipt: s.Receipt, Attempts: s.Attempts, Class: s.Class, Error: s.Error,
	})
}

// saidByTheAPI reports whether the text of a state is why the API has refused the effect. All others are for
// operators: they have addresses of servers, what a proxy has said, or an operator's own reason.
func saidByTheAPI(s once.State) bool {
	return s.State == rules.Failed && s.Class == once.Rejected.String()
}

// refusal returns the function that refuses a request.
func refusal(w http.ResponseWriter, r *http.Request) func(status int, word, format string, args ...any) {
	return func(status int, word, format string, args ...any) {
		web.Refuse(w, r, web.Refusal{Status: status, Word: word, Message: fmt.Sprintf(format, args...)})
	}
}

// admit returns the client of a request and the kind that it may ask for, or refuses the request.
func (e *entrance) admit(w http.ResponseWriter, r *http.Request) (from *client, kind string, ok bool) {
	refuse := refusal(w, r)
	from = e.clients[e.tokens.NameOf(r)] // nil: the token is nobody's
	kind = r.PathValue("kind")
	switch {
	case r.Header.Get("Authorization") == "":
		refuse(http.StatusUnauthorized, "no_token", "present a token in the header Authorization, as a bearer token")
		return nil, "", false
	case from == nil:
		refuse(http.StatusForbidden, "other_token", "the token is none of plugins.effects.http.clients")
		return nil, "", false
	case !slices.Contains(e.kinds, kind):
		refuse(http.StatusNotFound, "unknown_kind", "no kind %q may be asked for here: %s may ask for %s", kind, from.name, strings.Join(from.kinds, ", "))
		return nil, "", false
	case !slices.Contains(from.kinds, kind):
		refuse(http.StatusForbidden, "other_kind", "plugins.effects.http.clients.%s.kinds does not have %s: %s may ask for %s", from.name, kind, from.name, strings.Join(from.kinds, ", "))
		return nil, "", false
	}
	if wait := e.rates.Take(from.name, time.Now()); wait > 0 {
		web.Refuse(w, r, web.Refusal{
			Status: http.StatusTooManyRequests, Word: "too_many", RetryAfter: max(wait, time.Second),
			Message: fmt.Sprintf("%s may send %d requests a minute", from.name, e.rates.Most),
		})
		return nil, "", false
	}
	return from, kind, true
}

// show answers with the state of an effect.
func (e *entrance) show(w http.ResponseWriter, r *http.Request) {
	from, kind, ok := e.admit(w, r)
	if !ok {
		return
	}
	refuse := refusal(w, r)
	k := once.Key{Group: r.URL.Query().Get("group"), ID: r.PathValue("key")}
	if k.Group == "" {
		refuse(http.StatusBadRequest, "no_group", "add the group of the effect to the address, as in /once/%s/KEY?group=GROUP: a key names an effect within its group", kind)
		return
	}
	if err := k.Validate(); err != nil {
		refuse(http.StatusBadRequest, "bad_key", "%s", err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	state, err := e.once.StateOf(ctx, kind, k)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		refuse(http.StatusNotFound, "unknown_effect", "%s:%s was never accepted", kind, k)
	case err != nil:
		e.sampled.Warn(e.log, "the state of an effect was asked for over HTTP and could not be read", slog.String("kind", kind), slog.String("client", from.name), logs.Err(err))
		refuse(http.StatusServiceUnavailable, "unavailable", "the ledger does not answer; ask again later")
	default:
		write(w, http.StatusOK, kind, k, state)
	}
}

// accept takes an effect.
func (e *entrance) accept(w http.ResponseWriter, r *http.Request) {
	from, kind, ok := e.admit(w, r)
	if !ok {
		return
	}
	refuse := refusal(w, r)
	o, err := readOrder(r.Body)
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		refuse(http.StatusRequestEntityTooLarge, "too_large", "the body may have %d bytes", tooLarge.Limit)
		return
	}
	if err != nil {
		refuse(http.StatusBadRequest, "bad_body", "%s", err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	asked, err := e.once.Ask(ctx, kind, once.Ask{
		Payload: o.Payload, ID: string(o.Key), Group: string(o.Group), NotBefore: o.NotBefore, Origin: fmt.Sprintf("asked for by %s over HTTP at %s", from.name, e.instance),
	})
	name := kind + ":" + asked.Key.String()
	switch {
	case errors.Is(err, once.ErrOtherKey):
		refuse(http.StatusUnprocessableEntity, "other_key", "%s", err)
	case pipeline.IsPermanent(err):
		refuse(http.StatusUnprocessableEntity, "bad_payload", "%s", err)
	case err != nil:
		// The text may name servers, which the client need not know.
		e.sampled.Warn(e.log, "an effect that was asked for over HTTP was not accepted", slog.String("kind", kind), slog.String("client", from.name), logs.Err(err))
		refuse(http.StatusServiceUnavailable, "unavailable", "the ledger does not answer; send the same request again, which is harmless")
	case asked.Accepted == once.Conflict:
		refuse(http.StatusConflict, "effect_conflict", "%s exists with another request, which stands: use another key, or send what was sent first", name)
	case asked.Accepted == once.Cancelled:
		refuse(http.StatusConflict, "cancelled", "%s is cancelled with its group, for good", name)
	default:
		status := http.StatusOK
		if asked.Accepted == once.Fresh {
			status = http.StatusAccepted
		}
		write(w, status, kind, asked.Key, asked.State)
	}
}

// readOrder reads a body to its end. Its errors are for people, unless the body is too large.
func readOrder(body io.Reader) (o order, err error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return o, err
	}
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&o); err != nil {
		return o, fmt.Errorf("the body must be a JSON object with key, group, payload and not_before: %w", err)
	}
	switch _, err := dec.Token(); {
	case !errors.Is(err, io.EOF):
		return o, errors.New("the body has something after its JSON object")
	case o.Key == "":
		return o, errors.New("key must be set: it names the effect, as the kind finds it in the payload")
	case len(o.Payload) == 0 || string(o.Payload) == "null":
		return o, errors.New("payload must be set: it is what a record of the kind's topic would be")
	}
	return o, nil
}
