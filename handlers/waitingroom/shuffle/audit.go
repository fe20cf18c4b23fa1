package shuffle

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Audit contains all that a check of a shuffle needs.
type Audit struct {
	Event      string `json:"event"`
	Commitment string `json:"commitment"` // published before users entered
	Secret     string `json:"secret"`
	Digest     string `json:"digest"`
	Users      int    `json:"users"`

	Order []Hash `json:"-"` // the users' hashes, the first one first
}

// Write writes the audit: one line of JSON, then one hash per line.
func (a Audit) Write(to io.Writer) error {
	w := bufio.NewWriter(to)
	a.Users = len(a.Order)
	if err := json.NewEncoder(w).Encode(a); err != nil {
		return fmt.Errorf("write the audit of event %s: %w", a.Event, err)
	}
	for _, user := range a.Order {
		_, _ = fmt.Fprintln(w, user) // Flush returns the error
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the audit of event %s: %w", a.Event, err)
	}
	return nil
}

// Read reads what Write has written. The error names the line.
func Read(from io.Reader) (a Audit, err error) {
	lines, n := bufio.NewScanner(from), 0
	for lines.Scan() {
		n++
		if n == 1 {
			if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
				return a, fmt.Errorf("line 1 must be a JSON object with event, commitment, secret and digest: %w", err)
			}
			continue
		}
		user, ok := parseHash(lines.Text())
		if !ok {
			return a, fmt.Errorf("line %d must be a hash of 64 hexadecimal digits, got %.80q", n, lines.Text())
		}
		if len(a.Order) == a.Users {
			return a, fmt.Errorf("line %d: the file has more than %d users", n, a.Users)
		}
		a.Order = append(a.Order, user)
	}
	if err := lines.Err(); err != nil {
		return a, fmt.Errorf("read the audit: %w", err)
	}
	if n == 0 {
		return a, errors.New("line 1 is missing: the file is empty")
	}
	return a, nil
}

// Place returns the place of a user, from 1. It is 0 when the user is not in the audit.
func (a Audit) Place(user string) int { return slices.Index(a.Order, User(a.Event, user)) + 1 }

// Verify returns nil if the order follows from the secret and the users, and the secret is the one
// whose hash was published. The caller compares Commitment with what was published.
func (a Audit) Verify() error {
	if got := Commitment(a.Secret).String(); got != a.Commitment {
		return fmt.Errorf("the hash of the secret is %s, not the published %s: it is another secret", got, a.Commitment)
	}
	if len(a.Order) != a.Users {
		return fmt.Errorf("the file has %d users, and its first line says %d", len(a.Order), a.Users)
	}
	seen := make(map[Hash]int, len(a.Order))
	for i, user := range a.Order {
		if first, twice := seen[user]; twice {
			return fmt.Errorf("places %d and %d have the same user, %s", first+1, i+1, user)
		}
		seen[user] = i
	}
	digest := Digest(a.Order)
	if digest.String() != a.Digest {
		return fmt.Errorf("the digest of the users is %s, not %s: users were added or removed", digest, a.Digest)
	}
	draw := New(a.Secret, digest)
	for i := 1; i < len(a.Order); i++ {
		if compare(draw.number(a.Order[i-1]), draw.number(a.Order[i])) >= 0 {
			return fmt.Errorf("places %d and %d are in the wrong order", i, i+1)
		}
	}
	return nil
}
