package console

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// writeUser writes a file with the user ann, whose hash has a cost.
func writeUser(t *testing.T, file string, cost int) {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("open"), cost)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte("ann:"+string(hash)+"\n"), 0o600))
}

// Whoever measures the time of an answer must not learn which names the file has, so an absent one costs as much, also after the
// file has changed.
func TestAnAbsentNameCostsAsMuch(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "users")
	for _, cost := range []int{5, 6} {
		writeUser(t, file, cost)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		found, err := parseUsers(file, append([]byte("# low\nlow:$2a$04$"+strings.Repeat("a", bcryptText)+"\n"), text...))
		require.NoError(t, err)
		absent, err := bcrypt.Cost(found.absent)
		require.NoError(t, err)
		require.Equal(t, cost, absent)
		require.ErrorIs(t, bcrypt.CompareHashAndPassword(found.absent, []byte("open")), bcrypt.ErrMismatchedHashAndPassword, "it is compared wholly")
	}
}

// Everybody behind a proxy comes from its address, also where people sign in with a password. The proxy names nobody then.
func TestAProxyIsExemptWithPasswords(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	c.UsersFile, c.TrustedProxies = filepath.Join(t.TempDir(), "users"), []string{"192.0.2.0/24"}
	c.Roles = map[string]operate.Role{"ann": operate.Admin}
	writeUser(t, c.UsersFile, bcrypt.MinCost)
	require.NoError(t, c.Validate())
	l, err := newLogin(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s := &server{login: l}
	require.True(t, s.isExempt(netip.MustParseAddr("192.0.2.1")))
	require.False(t, s.isExempt(netip.MustParseAddr("198.51.100.1")))

	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.RemoteAddr = "192.0.2.1:4711"
	r.Header.Set("X-User", "ann")
	_, err = l.person(r)
	require.ErrorIs(t, err, errNobody)
}
