package web

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/pipeline/setting"
)

const minTokenBytes = 16

var errShortToken = fmt.Errorf("must have at least %d characters", minTokenBytes)

// CheckToken returns why a bearer token that clients of this process present is too easy to guess. It is
// for Validate methods, and its error does not contain the token.
func CheckToken(token string) error {
	if len(token) < minTokenBytes {
		return errShortToken
	}
	return nil
}

// Tokens checks the bearer tokens of requests. The files of its secrets are read again when they change,
// so a token is rotated without a restart. Build it with NewTokens. It is safe for concurrent use.
type Tokens struct{ tokens []*setting.Live }

// NewTokens returns the check for the secrets, each of which is accepted; without one it accepts no
// request. The name says in warnings what they are for. A nil log discards.
func NewTokens(name string, log *slog.Logger, secrets ...setting.Secret) *Tokens {
	b := &Tokens{}
	for _, s := range secrets {
		b.tokens = append(b.tokens, s.Live(name, log, CheckToken))
	}
	return b
}

// Accepts reports whether a request presents one of the tokens. It takes the same time for each of them.
func (b *Tokens) Accepts(r *http.Request) bool {
	scheme, raw, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given, found := sha256.Sum256([]byte(strings.TrimSpace(raw))), 0
	for _, token := range b.tokens {
		want := sha256.Sum256([]byte(token.Value(r.Context())))
		found |= subtle.ConstantTimeCompare(given[:], want[:])
	}
	return found == 1 && strings.EqualFold(scheme, "Bearer")
}

// NamedTokens finds out whose bearer token a request presents. Build it with NewNamedTokens. It is safe for
// concurrent use.
type NamedTokens struct {
	names  []string
	tokens []*Tokens // by the place of the name
}

// NewNamedTokens returns the check for secrets by the name of whom each belongs to. at returns the path of the
// setting of a name, for warnings. A nil log discards.
func NewNamedTokens(at func(name string) string, log *slog.Logger, secrets map[string]setting.Secret) *NamedTokens {
	n := &NamedTokens{names: slices.Sorted(maps.Keys(secrets))}
	for _, name := range n.names {
		n.tokens = append(n.tokens, NewTokens(at(name), log, secrets[name]))
	}
	return n
}

// NameOf returns the name whose token a request presents, or nothing. It takes the same time for each of them.
func (n *NamedTokens) NameOf(r *http.Request) (name string) {
	for i, t := range n.tokens {
		if t.Accepts(r) {
			name = n.names[i]
		}
	}
	return name
}
