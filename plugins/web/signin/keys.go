package signin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/setting"
)

const (
	fetchTimeout  = 3 * time.Second  // of the key set, and the longest wait of a request for it
	fetchInterval = 10 * time.Minute // without a reason to fetch it sooner
	fetchAgain    = 10 * time.Second // the shortest time between two fetches
	maxKeySet     = 1 << 20          // bytes
	maxSkipped    = 10               // keys that a warning names
	maxToken      = 8 << 10          // bytes
	tokenLeeway   = 30 * time.Second
)

// signatures are the algorithms of sign-in tokens. None of them uses a shared secret.
func signatures() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.EdDSA, jose.ES256, jose.ES384, jose.ES512, jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	}
}

var (
	// ErrNoUser says that a token is not one of the sign-in. It may be for the handler, so the request has no
	// user.
	ErrNoUser = errors.New("the token is not one of the sign-in")
	// ErrUnavailable says that the keys were never fetched, so that the client has to try again.
	ErrUnavailable = errors.New("the keys of the sign-in could not be fetched")

	errNoKey = fmt.Errorf("%w: no key has its kid", ErrNoUser)
)

// Keys verify the tokens of a sign-in. Build them with NewKeys.
type Keys struct {
	issuer, audience string
	url              string                     // empty: the keys are of a file
	file             *setting.LiveFile[*keySet] // nil: they are of an address
	client           *http.Client
	log              *slog.Logger
	wanted           chan struct{} // has room for one

	mu       sync.Mutex          // guards what follows
	keys     *jose.JSONWebKeySet // that were fetched
	skipped  string              // the keys of the latest set that are not used
	fetching bool
	latest   time.Time     // when the last fetch began
	fetched  chan struct{} // closed at the end of the next fetch
}

// NewKeys returns the keys of the settings. Field is their name, such as plugins.web.auth, for errors and
// warnings. Keys of an address are fetched by Run, and those of a file are read again when it changes.
func NewKeys(a Config, field string, log *slog.Logger) (*Keys, error) {
	transport, err := httpclient.NewTransport(a.JWKSClient, nil, field+".jwks_client", log)
	if err != nil {
		return nil, setting.FieldErrorsUnder(field+".jwks_client", err)
	}
	s := &Keys{
		issuer: a.Issuer, audience: a.Audience, url: a.JWKSURL, log: log,
		client: &http.Client{Timeout: fetchTimeout, CheckRedirect: httpclient.NoRedirect, Transport: transport},
		wanted: make(chan struct{}, 1), fetched: make(chan struct{}),
	}
	if a.JWKSFile == "" {
		return s, nil
	}
	s.file, err = followKeySet(a.JWKSFile, field+".jwks_file", log)
	if err == nil {
		s.ofFile(context.Background())
	}
	return s, err
}

// keySet is the content of a file.
type keySet struct {
	keys    *jose.JSONWebKeySet
	skipped string
}

func followKeySet(file, field string, log *slog.Logger) (*setting.LiveFile[*keySet], error) {
	return setting.NewLiveFile(field, file, maxKeySet, log, func(text []byte) (*keySet, error) {
		keys, skipped, err := parseKeySet(text)
		if err != nil {
			return nil, err
		}
		return &keySet{keys, skipped}, nil
	})
}

// ofFile returns the current keys of the file. They are not kept here, because a request that has read an earlier
// file may be late.
func (s *Keys) ofFile(ctx context.Context) *jose.JSONWebKeySet {
	now := s.file.Value(ctx)
	s.warn(ctx, now.skipped)
	return now.keys
}

// warn logs which keys are skipped, unless it did so before.
func (s *Keys) warn(ctx context.Context, skipped string) {
	s.mu.Lock()
	changed := skipped != s.skipped
	s.skipped = skipped
	s.mu.Unlock()
	if changed && skipped != "" {
		s.log.WarnContext(ctx, "keys of the sign-in skipped", slog.String("keys", skipped))
	}
}

// parseKeySet keeps the public keys of a set: a shared secret must verify nothing. Other keys, and
// those of a type that is not known, are skipped (RFC 7517, section 5). skipped lists them, except
// keys for encryption.
func parseKeySet(text []byte) (keys *jose.JSONWebKeySet, skipped string, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, "", fmt.Errorf("no JSON Web Key Set: %w", err)
	}
	keys = &jose.JSONWebKeySet{}
	var names []string
	for i, raw := range set.Keys {
		var name struct{ Kid, Kty, Use string }
		var key jose.JSONWebKey
		_ = json.Unmarshal(raw, &name) // for the log; a key of another form has no name
		switch wrong := json.Unmarshal(raw, &key); {
		case name.Use == "enc":
		case wrong == nil && key.Valid() && key.IsPublic():
			keys.Keys = append(keys.Keys, key)
		case len(names) < maxSkipped:
			if wrong == nil {
				wrong = errors.New("it is no public key")
			}
			names = append(names, fmt.Sprintf("keys[%d] (kid %q, kty %q): %s", i, name.Kid, name.Kty, wrong))
		}
	}
	skipped = strings.Join(names, "; ")
	if len(keys.Keys) == 0 {
		return nil, "", errors.New("the JSON Web Key Set has no public key that can be used: " + cmp.Or(skipped, "it is empty or has keys for encryption only"))
	}
	return keys, skipped, nil
}

// Fetched reports whether Run has to fetch the keys, because they are not those of a file.
func (s *Keys) Fetched() bool { return s.url != "" }

// Run fetches the keys at once, regularly, and when a request needs one that is absent, until ctx ends.
func (s *Keys) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.wanted:
			if !s.due() {
				continue
			}
		}
		s.fetch(ctx)
		s.mu.Lock()
		wait := fetchInterval
		if s.keys == nil {
			wait = fetchAgain
		}
		s.mu.Unlock()
		timer.Reset(wait)
	}
}

func (s *Keys) fetch(ctx context.Context) {
	s.mu.Lock()
	s.latest, s.fetching = time.Now(), true
	s.mu.Unlock()
	keys, skipped, err := s.get(ctx)
	switch {
	case err == nil:
		s.mu.Lock()
		s.keys = keys
		s.mu.Unlock()
		s.warn(ctx, skipped)
	case ctx.Err() == nil:
		s.log.WarnContext(ctx, "keys of the sign-in not fetched", slog.String("server", pipeline.ServerOf(s.url).Name), logs.Err(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.fetched)
	s.fetched, s.fetching = make(chan struct{}), false
}

// due reports whether the keys may be fetched again.
func (s *Keys) due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.latest) >= fetchAgain
}

func (s *Keys) get(ctx context.Context) (keys *jose.JSONWebKeySet, skipped string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, http.NoBody)
	if err != nil {
		return nil, "", httpclient.WithoutURL(err)
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return nil, "", httpclient.WithoutURL(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("status %d", answer.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxKeySet))
	if err != nil {
		return nil, "", err
	}
	return parseKeySet(text)
}

// key returns the key of a name. If none that was fetched has it, it waits for a fetch, at most fetchTimeout.
// The keys are fetched at most once per fetchAgain.
func (s *Keys) key(ctx context.Context, kid string) (*jose.JSONWebKey, error) {
	if s.file != nil {
		if found := s.ofFile(ctx).Key(kid); len(found) > 0 {
			return &found[0], nil
		}
		return nil, errNoKey
	}
	found, fetched := s.lookUp(kid)
	if found == nil && fetched != nil {
		timer := time.NewTimer(fetchTimeout)
		defer timer.Stop()
		select {
		case <-fetched:
		case <-timer.C:
		case <-ctx.Done():
		}
		found, _ = s.lookUp(kid)
	}
	if found != nil {
		return found, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		return nil, ErrUnavailable
	}
	return nil, errNoKey
}

// lookUp returns a key that was fetched, or the channel that the end of a fetch closes. Both are nil if the last
// fetch was too recent.
func (s *Keys) lookUp(kid string) (*jose.JSONWebKey, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys != nil {
		if found := s.keys.Key(kid); len(found) > 0 {
			return &found[0], nil
		}
	}
	if !s.fetching && time.Since(s.latest) < fetchAgain {
		return nil, nil
	}
	select {
	case s.wanted <- struct{}{}:
	default: // the loop is notified already
	}
	return nil, s.fetched
}

// AllowFetch lets the keys be fetched again at once.
func (s *Keys) AllowFetch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = time.Time{}
}

// User returns the user of a token, and decodes its claims into the values, if there are some. The error is a
// *BadUserError, or wraps ErrUnavailable or ErrNoUser; the values are then not to be used.
func (s *Keys) User(ctx context.Context, raw string, claims ...any) (User, error) {
	if len(raw) > maxToken {
		return User{}, fmt.Errorf("%w: it is too long", ErrNoUser)
	}
	token, err := jwt.ParseSigned(raw, signatures())
	if err != nil {
		return User{}, fmt.Errorf("%w: %w", ErrNoUser, err)
	}
	var unverified struct {
		Issuer string `json:"iss"`
	}
	// A token of another issuer, such as that of a job, must cause no fetch.
	if err := token.UnsafeClaimsWithoutVerification(&unverified); err != nil || unverified.Issuer != s.issuer {
		return User{}, fmt.Errorf("%w: it has another issuer", ErrNoUser)
	}
	header := token.Headers[0]
	if _, critical := header.ExtraHeaders["crit"]; critical {
		return User{}, fmt.Errorf("%w: it has critical headers", ErrNoUser)
	}
	key, err := s.key(ctx, header.KeyID)
	if err != nil {
		return User{}, err
	}
	if key.Algorithm != "" && key.Algorithm != header.Algorithm {
		return User{}, fmt.Errorf("%w: its algorithm is not that of the key", ErrNoUser)
	}
	var c jwt.Claims
	if err := token.Claims(key, append([]any{&c}, claims...)...); err != nil {
		return User{}, fmt.Errorf("%w: %w", ErrNoUser, err)
	}
	err = c.ValidateWithLeeway(jwt.Expected{Issuer: s.issuer, AnyAudience: jwt.Audience{s.audience}}, tokenLeeway)
	if err != nil || c.Expiry == nil || c.Subject == "" {
		return User{}, fmt.Errorf("%w: it has ended, or has another audience, or no user", ErrNoUser)
	}
	if err := checkUser(c.Subject); err != nil {
		return User{}, err
	}
	return User{ID: c.Subject, Expires: c.Expiry.Time()}, nil
}
