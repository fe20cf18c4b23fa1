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

// NamedTokens finds out whose bearer token a request presents. The files of its secrets are read again when
// they change, so a token is rotated without a restart. Build it with NewNamedTokens. It is safe for
// concurrent use.
type NamedTokens struct {
	names  []string
	tokens []*setting.Live // by the place of the name
}

// NewNamedTokens returns the check for secrets by the name of whom each belongs to. at returns the path of the
// setting of a name, for warnings. A nil log discards.
func NewNamedTokens(at func(name string) string, log *slog.Logger, secrets map[string]setting.Secret) *NamedTokens {
	n := &NamedTokens{names: slices.Sorted(maps.Keys(secrets))}
	for _, name := range n.names {
		n.tokens = append(n.tokens, secrets[name].Live(at(name), log, CheckToken))
	}
	return n
}

// NameOf returns the name whose token a request presents, or nothing. It takes the same time for each of them.
func (n *NamedTokens) NameOf(r *http.Request) (name string) {
	scheme, raw, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given := sha256.Sum256([]byte(strings.TrimSpace(raw)))
	found := 0
	for i, token := range n.tokens {
		want := sha256.Sum256([]byte(token.Value(r.Context())))
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(given[:], want[:]), i+1, found)
	}
	if found == 0 || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return n.names[found-1]
}
