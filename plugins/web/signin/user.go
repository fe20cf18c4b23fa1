package signin

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// User is a signed-in user.
type User struct {
	ID      string    // 1 to 128 printable characters
	Expires time.Time // the end of the token; zero with a user of a trusted proxy
}

const maxUserID = 128 // characters

// BadUserError says what is wrong with the id of a user that a proxy or the sign-in has named. The server
// answers 400.
type BadUserError struct{ problem string }

func (e *BadUserError) Error() string {
	return fmt.Sprintf("the user id of the sign-in %s; a user id has 1 to %d printable characters", e.problem, maxUserID)
}

// checkUser returns a *BadUserError for an id that no User has.
func checkUser(id string) error {
	switch n := utf8.RuneCountInString(id); {
	case n == 0, n > maxUserID:
		return &BadUserError{fmt.Sprintf("has %d characters", n)}
	case !utf8.ValidString(id):
		return &BadUserError{"is not UTF-8"}
	case strings.ContainsFunc(id, func(r rune) bool { return !unicode.IsPrint(r) }):
		return &BadUserError{"has a character that is not printable"}
	}
	return nil
}

// Named returns the user in the header of the settings, if there is one. Call it for requests of a trusted
// proxy only. The error is a *BadUserError.
func (a Config) Named(headers http.Header) (user User, named bool, err error) {
	ids := headers.Values(a.Header)
	// A second value may be that of the client.
	if a.Header == "" || len(ids) != 1 || ids[0] == "" {
		return User{}, false, nil
	}
	if err := checkUser(ids[0]); err != nil {
		return User{}, false, err
	}
	return User{ID: ids[0]}, true, nil
}

// Bearer returns the token of the header Authorization, and whether it has one of the scheme Bearer.
func Bearer(h http.Header) (token string, found bool) {
	scheme, raw, _ := strings.Cut(h.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(raw), true
}

// Peer returns the address from which a request came, and the zero Addr, which is in no network, if it is none.
func Peer(r *http.Request) netip.Addr {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	a, _ := netip.ParseAddr(host)
	return a.Unmap().WithZone("")
}
