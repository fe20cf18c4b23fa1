package shopmiddleware

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	leeway     = 30 * time.Second // because clocks differ
	maxToken   = 8 << 10          // bytes
	keysLife   = 10 * time.Minute
	fetchAgain = 10 * time.Second // the shortest time between two fetches
)

// keys are the public keys of the waiting room. A request fetches them when they are old, or when
// the key of its token is absent. Requests whose key is present do not wait for it.
type keys struct {
	fetch func(context.Context) (map[string]ed25519.PublicKey, error)

	mu       sync.Mutex
	byID     map[string]ed25519.PublicKey
	latest   time.Time     // when the last fetch began
	fetching chan struct{} // closed at the end of the fetch; nil without one
}

// of returns the key of an id. After a failed fetch the older keys are used.
func (k *keys) of(ctx context.Context, id string) (ed25519.PublicKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, age := k.byID[id], time.Since(k.latest)
	switch {
	case key != nil && (age < keysLife || k.fetching != nil):
		return key, nil
	case k.fetching != nil:
		running := k.fetching
		k.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
		}
		k.mu.Lock()
	case age >= fetchAgain:
		k.renew(ctx)
	}
	switch key := k.byID[id]; {
	case key != nil:
		return key, nil
	case k.byID == nil:
		return nil, fmt.Errorf("%w: its keys could not be fetched", ErrUnavailable)
	}
	return nil, fmt.Errorf("%w: no key has its kid", ErrNoEntry)
}

// renew fetches the keys. The caller holds mu, which is free meanwhile.
func (k *keys) renew(ctx context.Context) {
	ended := make(chan struct{})
	k.latest, k.fetching = time.Now(), ended
	k.mu.Unlock()
	// The keys are for all requests: the end of this one does not end the fetch.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	byID, err := k.fetch(ctx)
	k.mu.Lock()
	if err == nil {
		k.byID = byID
	}
	k.fetching = nil
	close(ended)
}

func (g *Gate) fetchKeys(ctx context.Context) (map[string]ed25519.PublicKey, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.base+"/.well-known/jwks.json", http.NoBody)
	if err != nil {
		return nil, err
	}
	status, text, err := g.do(r)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("status %d", status)
	}
	return parseKeys(text)
}

// parseKeys returns the keys that can sign entry tokens. Others are skipped (RFC 7517, section 5).
func parseKeys(text []byte) (map[string]ed25519.PublicKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, fmt.Errorf("no JSON Web Key Set: %w", err)
	}
	byID := map[string]ed25519.PublicKey{}
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil {
			continue // of a type that is not known
		}
		if public, ok := key.Key.(ed25519.PublicKey); ok {
			byID[key.KeyID] = public
		}
	}
	if len(byID) == 0 {
		return nil, fmt.Errorf("none of %d keys of the JSON Web Key Set is a public key of Ed25519", len(set.Keys))
	}
	return byID, nil
}

// Check returns the entry of a token by its signature and its end, without a request. It does not
// show whether the lease still exists: see Verify.
func (g *Gate) Check(ctx context.Context, event, raw string) (Entry, error) {
	entry, err := g.signed(ctx, event, raw)
	if err == nil && time.Since(entry.Until) > leeway {
		return Entry{}, fmt.Errorf("%w: it has expired", ErrNoEntry)
	}
	return entry, err
}

// signed is Check without the end of the token.
func (g *Gate) signed(ctx context.Context, event, raw string) (Entry, error) {
	if raw == "" || len(raw) > maxToken {
		return Entry{}, fmt.Errorf("%w: it has %d bytes", ErrNoEntry, len(raw))
	}
	token, err := jwt.ParseSigned(raw, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return Entry{}, fmt.Errorf("%w: %w", ErrNoEntry, err)
	}
	header := token.Headers[0]
	if _, critical := header.ExtraHeaders["crit"]; critical {
		return Entry{}, fmt.Errorf("%w: it has critical headers", ErrNoEntry)
	}
	key, err := g.keys.of(ctx, header.KeyID)
	if err != nil {
		return Entry{}, err
	}
	var c jwt.Claims
	if err := token.Claims(key, &c); err != nil {
		return Entry{}, fmt.Errorf("%w: %w", ErrNoEntry, err)
	}
	switch {
	case c.Expiry == nil || c.Subject == "" || c.ID == "":
		return Entry{}, fmt.Errorf("%w: it has no end, user or lease", ErrNoEntry)
	case !slices.Contains(c.Audience, audience+event):
		return Entry{}, ErrOtherEvent
	}
	return Entry{Event: event, UserID: c.Subject, JTI: c.ID, Until: c.Expiry.Time()}, nil
}

// audience begins the claim aud of an entry token; the event follows.
const audience = "millrace-room:"
