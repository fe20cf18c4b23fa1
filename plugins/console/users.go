package console

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// users signs people in with a password. Build it with newUsers.
type users struct {
	hashes map[string][]byte // by name
	absent []byte            // compared for a name that does not exist, so that both take equally long
	turn   chan struct{}     // a comparison costs much CPU time, so they run one after the other
	key    []byte            // of known

	mu    sync.Mutex
	known map[string]proof // by name; a page would cost a comparison each time
}

// proof is a password that was right, as a keyed hash.
type proof struct {
	sum   []byte
	until time.Time
}

const (
	proofLife   = 10 * time.Minute
	maxPassword = 72 // bytes; bcrypt ignores or refuses more
)

func newUsers(file string) (*users, error) {
	hashes, err := readUsers(file)
	if err != nil {
		return nil, err
	}
	absent, err := bcrypt.GenerateFromPassword([]byte(rand.Text()), bcrypt.DefaultCost)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return &users{
		hashes: hashes, absent: absent, turn: make(chan struct{}, 1), key: []byte(rand.Text()), known: map[string]proof{},
	}, nil
}

// readUsers reads lines of name:hash. Empty lines and lines that begin with # are left out.
func readUsers(file string) (map[string][]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	hashes := map[string][]byte{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, hash, found := strings.Cut(line, ":")
		if !found || name == "" {
			return nil, fmt.Errorf("%s, line %d: expected name:hash, as htpasswd -B writes it", file, n)
		}
		if _, err := bcrypt.Cost([]byte(hash)); err != nil {
			return nil, fmt.Errorf("%s, line %d: the hash of %s is not of bcrypt: write it with htpasswd -B", file, n, name)
		}
		if hashes[name] != nil {
			return nil, fmt.Errorf("%s, line %d: the user %s is in the file twice", file, n, name)
		}
		hashes[name] = []byte(hash)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(hashes) == 0 {
		return nil, fmt.Errorf("%s has no user: add one with htpasswd -B %s NAME", file, file)
	}
	return hashes, nil
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
	if u.proven(name, sum) {
		return true
	}
	hash, exists := u.hashes[name]
	if !exists {
		hash = u.absent
	}
	if !u.compare(r.Context(), hash, password) || !exists {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.known[name] = proof{sum, time.Now().Add(proofLife)}
	return true
}

func (u *users) proven(name string, sum []byte) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	p, found := u.known[name]
	return found && hmac.Equal(p.sum, sum) && time.Now().Before(p.until)
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
