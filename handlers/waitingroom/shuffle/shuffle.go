// Package shuffle orders the users of a pre-queue by lot. Any user can check the order afterwards.
//
// The hash of a secret is published before users enter. The order follows from the secret and the
// hashes of all users. Another order needs another secret or other users.
package shuffle

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// Hash is a SHA-256 hash. Its text is hexadecimal.
type Hash [sha256.Size]byte

// String returns the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// parseHash returns the hash of a text with 64 hexadecimal digits.
func parseHash(text string) (h Hash, ok bool) {
	raw, err := hex.DecodeString(text)
	return Hash(append(raw, make([]byte, len(h))...)[:len(h)]), err == nil && len(raw) == len(h)
}

// NewSecret returns a random secret, 64 hexadecimal digits.
func NewSecret() string {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	return hex.EncodeToString(raw[:])
}

// Commitment returns the hash of a secret, which is published before users enter.
func Commitment(secret string) Hash { return sha256.Sum256([]byte(secret)) }

// User returns the hash under which a user appears: SHA-256(event, 0, user).
func User(event, user string) Hash { return sha256.Sum256([]byte(event + "\x00" + user)) }

// Digest returns the hash of all users, in any order: SHA-256 of their sorted hashes.
func Digest(users []Hash) Hash {
	sorted := slices.Clone(users)
	slices.SortFunc(sorted, compare)
	all := sha256.New()
	for _, u := range sorted {
		all.Write(u[:])
	}
	return Hash(all.Sum(nil))
}

// Draw is the order of one set of users.
type Draw struct{ key []byte }

// New returns the draw of a secret and the digest of the users. Its key is SHA-256(secret, digest).
func New(secret string, digest Hash) Draw {
	key := sha256.Sum256(append([]byte(secret), digest[:]...))
	return Draw{key[:]}
}

// number returns the number of a user. Users come in the order of their numbers:
// HMAC-SHA256(key, user).
func (d Draw) number(user Hash) (n Hash) {
	mac := hmac.New(sha256.New, d.key)
	mac.Write(user[:])
	return Hash(mac.Sum(nil))
}

// Order returns the places of users: Order(users)[0] is the index in users of the first one.
func (d Draw) Order(users []Hash) []int {
	numbers := make([]Hash, len(users))
	order := make([]int, len(users))
	for i, u := range users {
		numbers[i], order[i] = d.number(u), i
	}
	slices.SortFunc(order, func(a, b int) int { return compare(numbers[a], numbers[b]) })
	return order
}

func compare(a, b Hash) int { return bytes.Compare(a[:], b[:]) }
