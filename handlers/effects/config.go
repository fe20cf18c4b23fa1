package effects

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/internal/jsonpath"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
	"github.com/millrace-io/millrace/plugins/web"
)

// Config is the section plugins.effects of the settings.
type Config struct {
	// Kinds are the kinds of effects, by name. The name is in metrics, commands and the idempotency key, so
	// it can't be changed while the ledger has effects of the kind.
	Kinds map[string]*Kind `yaml:"kinds"`
	// HTTP accepts effects over HTTP. Without kinds it is off.
	HTTP HTTP `yaml:"http"`
}

// Kind describes the effects of one kind. A path such as order.id leads into the record, which is JSON.
type Kind struct {
	// Repeat says what the API does with a second request: by_key, by_lookup, never or always.
	Repeat string `yaml:"repeat"`
	// Key is the path of what names the effect within its group: a text or a whole number.
	Key string `yaml:"key"`
	// Group is the path of what can be paused and cancelled, such as the customer.
	Group string `yaml:"group"`
	// NotBefore is the path of the earliest time of the first attempt. Empty: at once.
	NotBefore string `yaml:"not_before"`
	// Sum is the path of what an effect amounts to, for once reconcile: a whole number, in the unit of the API's own
	// book. Empty: effects have no sum.
	Sum     string  `yaml:"sum"`
	Request Request `yaml:"request"`
	// Lookup finds out what became of an effect. by_lookup requires it, and by_key may have it.
	Lookup  *Lookup `yaml:"lookup"`
	Answers Answers `yaml:"answers"`
	// API is the client. Its call_timeout is that of effects, unless it is set.
	API oncehttp.Config `yaml:"api"`
	// Names are the names in Redis of a contract with other programs.
	Names once.Names `yaml:"names"`
	// Effects are the settings that every kind has.
	Effects once.KindConfig `yaml:"effects"`
}

// Request is what every attempt sends.
type Request struct {
	// Method is POST, PUT or PATCH.
	Method string `yaml:"method"`
	// Path is below api.url. {key}, {group} and {id} in it stand for the idempotency key and the parts of the
	// effect's key.
	Path string `yaml:"path"`
	// IdempotencyHeader is the header of the idempotency key. by_key requires it.
	IdempotencyHeader string `yaml:"idempotency_header"`
	// IdempotencyKey is the form of the idempotency key: full, which has kind, group and id; uuid, which is
	// made of all three; or id, which must then be unique over all groups.
	IdempotencyKey string `yaml:"idempotency_key"`
	// Headers are further headers, also of a lookup.
	Headers map[string]setting.Secret `yaml:"headers"`
	// Body is the path of the part of the record that is sent. Empty: the whole record.
	Body string `yaml:"body"`
}

// Lookup is the request that finds out what became of an effect.
type Lookup struct {
	// Path is below api.url, and has the same places as that of the request.
	Path string `yaml:"path"`
	// NotFound are the codes with which a 404 says that the API does not know the effect.
	NotFound []string `yaml:"not_found"`
	// Statuses says what an answer proves by its status: done, not_done or unknown.
	Statuses map[string]string `yaml:"statuses"`
}

// Answers says what the answers of the API prove. Paths lead into an answer.
type Answers struct {
	// Receipt is the path of the API's name of the effect, in a 200 or 201.
	Receipt string `yaml:"receipt"`
	// Key is the path of the idempotency key in a 200 or 201, for an API that repeats it.
	Key string `yaml:"key"`
	// Code is the path of the API's own code in an error. Without such a code an error proves nothing, unless
	// Statuses says so.
	Code string `yaml:"code"`
	// Message is the path of the words for people in an error.
	Message string `yaml:"message"`
	// Statuses says what an answer proves by its status, such as 404, or a class of them, such as 4xx: done,
	// failed, retry or unknown.
	Statuses map[string]string `yaml:"statuses"`
}

// HTTP are the settings of POST /once/{kind} at the server of plugins.web.
type HTTP struct {
	// Kinds are the kinds that may be asked for, of settings or of Go.
	Kinds []string `yaml:"kinds"`
	// Clients are the programs that may ask, by name.
	Clients map[string]*Client `yaml:"clients"`
	// RequestsPerMinute is how many requests a client may send, at once or spread.
	RequestsPerMinute int `yaml:"requests_per_minute"`
}

// Client is a program that asks for effects.
type Client struct {
	// Token is its bearer token.
	Token setting.Secret `yaml:"token"`
	// Kinds are those of http.kinds that it may ask for. Empty: all of them.
	Kinds []string `yaml:"kinds"`
}

// may reports whether the client may ask for a kind of http.kinds.
func (c *Client) may(kind string) bool { return len(c.Kinds) == 0 || slices.Contains(c.Kinds, kind) }

func defaultConfig() Config { return Config{HTTP: HTTP{RequestsPerMinute: 6000}} }

// SetDefaults implements configs.Defaulter.
func (k *Kind) SetDefaults() {
	*k = Kind{API: oncehttp.DefaultConfig(), Effects: once.DefaultKind(""), Answers: Answers{Code: "code", Message: "message"}}
	k.Request.Method, k.Request.IdempotencyKey = "POST", keyFull
	k.API.CallTimeout, k.Effects.Group = 0, ""
}

// The forms of an idempotency key.
const (
	keyFull = "full"
	keyUUID = "uuid"
	keyID   = "id"
)

// idempotency returns what makes the idempotency key of a kind. Nil: that of every kind.
func (k *Kind) idempotency(name string) func(once.Key) string {
	switch k.Request.IdempotencyKey {
	case keyUUID:
		return once.UUID(name)
	case keyID:
		return func(key once.Key) string { return key.ID }
	}
	return nil
}

var repeats = map[string]once.Repeat{ //nolint:gochecknoglobals // a constant, but Go has none of this type
	"by_key": once.ByKey, "by_lookup": once.ByLookup, "never": once.Never, "always": once.Always,
}

var words = map[string]once.Class{ //nolint:gochecknoglobals // a constant, but Go has none of this type
	"done": once.Done, "failed": once.Rejected, "retry": once.Retry, "unknown": once.Unclear, "not_done": once.NotDone,
}

// effects returns the settings that every kind has. Each kind of a topic has a consumer group of its own, so
// that every record reaches all of them.
func (k *Kind) effects(name string) once.KindConfig {
	c := k.Effects
	if c.Group == "" {
		c.Group = "millrace-" + name
	}
	return c
}

func (k *Kind) api() oncehttp.Config {
	c := k.API
	if c.CallTimeout == 0 {
		c.CallTimeout = k.Effects.CallTimeout
	}
	return c
}

func (k *Kind) mapping(name string) oncehttp.Mapping {
	m := oncehttp.Mapping{
		Name: name, Method: k.Request.Method, Header: k.Request.IdempotencyHeader, NumericReceipt: true, Headers: map[string]setting.Secret{},
		Receipt: path(k.Answers.Receipt), Key: path(k.Answers.Key), Code: path(k.Answers.Code), Message: path(k.Answers.Message),
		Statuses: statuses(k.Answers.Statuses),
	}
	for header, value := range k.Request.Headers {
		m.Headers[header] = value
	}
	if k.Lookup != nil {
		m.NotFound, m.LookupStatuses = k.Lookup.NotFound, statuses(k.Lookup.Statuses)
	}
	return m
}

func path(text string) []string {
	p, err := jsonpath.Parse(text)
	if err != nil {
		return nil
	}
	return p
}

func statuses(all map[string]string) oncehttp.Statuses {
	s := oncehttp.Statuses{}
	for status, word := range all {
		s[status] = words[word]
	}
	return s
}

// Validate reports every mistake at once.
func (c *Config) Validate() error {
	var p setting.Problems
	readers := map[[2]string]string{} // topic and group → kind
	for _, name := range slices.Sorted(maps.Keys(c.Kinds)) {
		at, k := "kinds."+name, c.Kinds[name]
		if err := once.CheckName(name); err != nil {
			p.Check(false, at, "%s", err)
		}
		if k == nil {
			p.Check(false, at, "must be a section with the settings of the kind")
			continue
		}
		p.Under(at, k.validate(name))
		reads := [2]string{k.Effects.Topic, k.effects(name).Group}
		if other, taken := readers[reads]; taken && k.Effects.Topic != "" {
			p.Check(false, at+".effects.group", "must not be %q, which kind %s has for the topic %s: each record would reach only one of them", reads[1], other, reads[0])
		}
		readers[reads] = name
	}
	p.Under("http", c.HTTP.validate())
	return p.Err()
}

// fits checks the names of kinds against those that are written in Go.
func (c *Config) fits(inGo []string) error {
	var p setting.Problems
	for _, name := range slices.Sorted(maps.Keys(c.Kinds)) {
		p.Check(!slices.Contains(inGo, name), "kinds."+name, "a plugin of this binary has a kind %s: choose another name", name)
	}
	all := append(slices.Sorted(maps.Keys(c.Kinds)), inGo...)
	for i, name := range c.HTTP.Kinds {
		p.Check(slices.Contains(all, name), fmt.Sprintf("http.kinds[%d]", i), "must be the name of a kind, got %q: there are %s", name, orNone(all))
	}
	return p.Err()
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

func (h *HTTP) validate() error {
	var p setting.Problems
	for i, name := range h.Kinds {
		p.Check(!slices.Contains(h.Kinds[:i], name), fmt.Sprintf("kinds[%d]", i), "%q is in the list already", name)
	}
	p.Check(len(h.Kinds) == 0 || len(h.Clients) > 0, "clients", "must have a client with its token: without one nobody may ask for an effect")
	names := slices.Sorted(maps.Keys(h.Clients))
	for i, name := range names {
		at, c := "clients."+name, h.Clients[name]
		if c == nil {
			p.Check(false, at, "must be a section with the token of the client")
			continue
		}
		err := web.CheckToken(c.Token.Reveal())
		p.Check(err == nil, at+".token", "%v", err)
		for _, other := range names[:i] {
			p.Check(h.Clients[other] == nil || c.Token.Reveal() != h.Clients[other].Token.Reveal(), at+".token",
				"must not be the token of %s: each client has a rate and a name of its own", other)
		}
		for i, kind := range c.Kinds {
			p.Check(slices.Contains(h.Kinds, kind), fmt.Sprintf("%s.kinds[%d]", at, i), "must be one of http.kinds, got %q: there are %s", kind, orNone(h.Kinds))
		}
	}
	p.Check(h.RequestsPerMinute > 0, "requests_per_minute", "must be > 0, got %d", h.RequestsPerMinute)
	return p.Err()
}

func (k *Kind) validate(name string) error {
	var p setting.Problems
	repeat, known := repeats[k.Repeat]
	p.Check(known, "repeat", "must be by_key, by_lookup, never or always, because it decides what follows an unclear answer, got %q", k.Repeat)
	p.Check(slices.Contains([]string{keyFull, keyUUID, keyID}, k.Request.IdempotencyKey), "request.idempotency_key",
		"must be full, uuid or id, because an API may want a certain form, got %q", k.Request.IdempotencyKey)
	for _, c := range []struct {
		at, path string
		optional bool
	}{
		{"key", k.Key, false},
		{"group", k.Group, false},
		{"not_before", k.NotBefore, true},
		{"sum", k.Sum, true},
		{"request.body", k.Request.Body, true},
		{"answers.receipt", k.Answers.Receipt, true},
		{"answers.key", k.Answers.Key, true},
		{"answers.code", k.Answers.Code, false},
		{"answers.message", k.Answers.Message, false},
	} {
		_, err := jsonpath.Parse(c.path)
		p.Check(err == nil || c.optional && c.path == "", c.at, "%v", err)
	}
	p = append(p, k.checkRepeat(repeat), k.checkAnswers(name), k.checkClient(name))
	return p.Err()
}

// checkRepeat checks what the kind's Repeat requires.
func (k *Kind) checkRepeat(r once.Repeat) error {
	var p setting.Problems
	p.Check(r != once.ByKey || k.Request.IdempotencyHeader != "", "request.idempotency_header",
		"must be the header in which the API takes an idempotency key, such as Idempotency-Key: repeat is by_key")
	p.Check(r != once.ByKey || k.Effects.KeyTTL > 0, "effects.key_ttl", "must be the time for which the API surely knows an idempotency key, less a lease: repeat is by_key")
	p.Check(r != once.ByLookup || k.Effects.UnderWay > 0, "effects.under_way", "must be the longest time that a request may be under way after it was sent: repeat is by_lookup")
	p.Check(r != once.ByLookup || k.Lookup != nil, "lookup", "must be set: repeat is by_lookup, so only a lookup can tell what became of an effect")
	p.Check(k.Lookup == nil || r != once.Never && r != once.Always, "lookup", "must be absent with repeat: %s, which says that the API has none", k.Repeat)
	return p.Err()
}

func (k *Kind) checkAnswers(name string) error {
	var p setting.Problems
	check := func(at string, all map[string]string, lookup bool, want string, allowed ...string) {
		for _, status := range slices.Sorted(maps.Keys(all)) {
			word := all[status]
			if !slices.Contains(allowed, word) {
				p.Check(false, at+"."+status, "must be %s, got %q", want, word)
				continue
			}
			if err := oncehttp.CheckStatus(status, words[word], lookup); err != nil {
				p.Check(false, at+"."+status, "%s", err)
			}
		}
	}
	check("answers.statuses", k.Answers.Statuses, false, "done, failed, retry or unknown", "done", "failed", "retry", "unknown")
	if k.Lookup != nil {
		check("lookup.statuses", k.Lookup.Statuses, true, "done, not_done or unknown", "done", "not_done", "unknown")
		said := slices.Collect(maps.Values(k.Lookup.Statuses))
		p.Check(len(k.Lookup.NotFound) > 0 || slices.Contains(said, "not_done"), "lookup.not_found",
			"must have a code, or lookup.statuses a status that is not_done: otherwise no lookup ever says that an effect was not done")
		p.Check(k.Answers.Receipt != "" || k.Answers.Key != "" || slices.Contains(said, "done"), "lookup.statuses",
			"must have a status that is done, or answers.receipt must be set: otherwise no lookup ever says that an effect was done")
	}
	m := k.mapping(name)
	for _, one := range fieldErrors(m.Validate()) {
		switch one.Path {
		case "Method", "Header", "Headers", "Receipt", "NotFound":
			at := map[string]string{
				"Method": "request.method", "Header": "request.idempotency_header", "Headers": "request.headers", "Receipt": "answers.receipt", "NotFound": "lookup.not_found",
			}[one.Path]
			if one.Path == "Receipt" {
				if k.Answers.Receipt != "" || k.Answers.Key != "" { // its path is a mistake that was reported
					continue
				}
				one.Problem = "must be set, or answers.key, or answers.statuses must have a 2xx that is done: otherwise nothing proves that an effect was done"
			}
			p.Check(false, at, "%s", one.Problem)
		}
	}
	return p.Err()
}

// fieldErrors returns the parts of an error of setting.Problems.
func fieldErrors(err error) []*setting.FieldError {
	if one, ok := errors.AsType[*setting.FieldError](err); ok {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			var all []*setting.FieldError
			for _, e := range joined.Unwrap() {
				all = append(all, fieldErrors(e)...)
			}
			return all
		}
		return []*setting.FieldError{one}
	}
	return nil
}

func (k *Kind) checkClient(name string) error {
	var p setting.Problems
	if err := oncehttp.CheckPath(k.Request.Path); err != nil {
		p.Check(false, "request.path", "%s", err)
	}
	if k.Lookup != nil {
		if err := oncehttp.CheckPath(k.Lookup.Path); err != nil {
			p.Check(false, "lookup.path", "%s", err)
		}
	}
	api, effects := k.api(), k.effects(name)
	p.Under("api", api.Validate())
	p.Under("effects", effects.Validate())
	p.Under("names", k.Names.Validate())
	p.Check(api.CallTimeout <= effects.CallTimeout, "api.call_timeout", "must be at most effects.call_timeout (%s), which ends a call anyway, got %s", effects.CallTimeout, api.CallTimeout)
	u, err := url.Parse(api.URL)
	p.Check(len(k.Request.Headers) == 0 || err != nil || u.Scheme != "http" || api.AllowPlaintextCredentials || setting.Loopback(u.Host), "api.url",
		"must be https:// because of request.headers, which are taken for credentials: over http:// they cross the network in plain text; or set api.allow_plaintext_credentials: true")
	for header := range k.Request.Headers {
		p.Check(!strings.EqualFold(header, "Authorization") || api.Token.IsZero() && !api.OAuth2.Enabled(), "request.headers", "must not have %s with api.token or api.oauth2, whose token is sent in it", header)
	}
	return p.Err()
}
