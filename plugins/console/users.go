package console

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// users signs people in with a password. Build it with newUsers.
type users struct {
	file *setting.LiveFile[*accounts]
	turn chan struct{} // a comparison costs much CPU time, so they run one after the other
	key  []byte        // of known

	mu    sync.Mutex
	known map[string]proof // by name; a page would cost a comparison each time
}

// accounts are the users of a file.
type accounts struct {
	hashes map[string][]byte // by name
	absent []byte            // compared for a name that does not exist, so that it takes as long as for one that does
}

// proof is a password that was right, as a keyed hash.
type proof struct {
	sum   []byte
	hash  []byte // of the file; with another one the password has changed
	until time.Time
}

const (
	proofLife   = 10 * time.Minute
	maxPassword = 72      // bytes; bcrypt ignores or refuses more
	maxUsers    = 1 << 20 // bytes of the file
	bcryptText  = 22 + 31 // characters of the salt and the hash behind the cost
)

func newUsers(file string, log *slog.Logger) (*users, error) {
	followed, err := followUsers(file, log)
	if err != nil {
		return nil, err
	}
	return &users{
		file: followed, turn: make(chan struct{}, 1), key: []byte(rand.Text()), known: map[string]proof{},
	}, nil
}

// followUsers reads the file, which is read again when it changes.
func followUsers(file string, log *slog.Logger) (*setting.LiveFile[*accounts], error) {
	return setting.NewLiveFile("plugins.console.users_file", file, maxUsers, log, func(text []byte) (*accounts, error) {
		return parseUsers(file, text)
	})
}

// parseUsers reads lines of name:hash. Empty lines and lines that begin with # are left out.
func parseUsers(file string, text []byte) (*accounts, error) {
	hashes := map[string][]byte{}
	n, highest := 0, 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, hash, found := strings.Cut(line, ":")
		if !found || name == "" {
			return nil, fmt.Errorf("%s, line %d: expected name:hash, as htpasswd -B writes it", file, n)
		}
		cost, err := bcrypt.Cost([]byte(hash))
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: the hash of %s is not of bcrypt: write it with htpasswd -B -C 12", file, n, name)
		}
		if hashes[name] != nil {
			return nil, fmt.Errorf("%s, line %d: the user %s is in the file twice", file, n, name)
		}
		hashes[name] = []byte(hash)
		highest = max(highest, cost)
	}
	if len(hashes) == 0 {
		return nil, fmt.Errorf("%s has no user: add one with htpasswd -B -C 12 %s NAME", file, file)
	}
	// Nobody has to know its password, because only the time counts.
	return &accounts{hashes, fmt.Appendf(nil, "$2a$%02d$%s", highest, strings.Repeat("a", bcryptText))}, nil
}

// allow reports whether the request has the name and the password of a user.
func (u *users) allow(r *http.Request) bool {
	name, password, given := r.BasicAuth()
	if !given || len(password) > maxPassword {
		return false
	}
	mac := hmac.New(sha256.New, u.key)
	mac.Write([]byte(name + "\x00" + password))
	sum := mac.Sum(nil)
	known := u.file.Value(r.Context())
	hash, exists := known.hashes[name]
	if exists && u.proven(name, sum, hash) {
		return true
	}
	if !exists {
		hash = known.absent
	}
	if !u.compare(r.Context(), hash, password) || !exists {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.known[name] = proof{sum, hash, time.Now().Add(proofLife)}
	return true
}

func (u *users) proven(name string, sum, hash []byte) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	p, found := u.known[name]
	return found && hmac.Equal(p.sum, sum) && bytes.Equal(p.hash, hash) && time.Now().Before(p.until)
}

func (u *users) compare(ctx context.Context, hash []byte, password string) bool {
	select {
	case u.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	defer func() { <-u.turn }()
	return bcrypt.CompareHashAndPassword(hash, []byte(password)) == nil
}
