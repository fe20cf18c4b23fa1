package shuffle_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
)

// audit returns the audit of n users u0, u1, …
func audit(n int, secret string) shuffle.Audit {
	users := make([]shuffle.Hash, n)
	for i := range users {
		users[i] = shuffle.User("42", fmt.Sprintf("u%d", i))
	}
	digest := shuffle.Digest(users)
	a := shuffle.Audit{Event: "42", Commitment: shuffle.Commitment(secret).String(), Secret: secret, Digest: digest.String(), Users: n}
	for _, i := range shuffle.New(secret, digest).Order(users) {
		a.Order = append(a.Order, users[i])
	}
	return a
}

// A written audit can be verified from the file alone, and each change of it is noticed.
func TestAnAuditIsVerifiedFromItsFileAlone(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	require.NoError(t, audit(1000, "secret").Write(&file))
	a, err := shuffle.Read(bytes.NewReader(file.Bytes()))
	require.NoError(t, err)
	require.Len(t, a.Order, 1000)
	require.NoError(t, a.Verify())

	for name, change := range map[string]func(*shuffle.Audit){
		"it is another secret":         func(a *shuffle.Audit) { a.Secret = "other" },
		"in the wrong order":           func(a *shuffle.Audit) { a.Order[10], a.Order[11] = a.Order[11], a.Order[10] },
		"users were added or removed":  func(a *shuffle.Audit) { a.Order = a.Order[1:]; a.Users-- },
		"and its first line says 1000": func(a *shuffle.Audit) { a.Order = a.Order[1:] },
		"have the same user":           func(a *shuffle.Audit) { a.Order[3] = a.Order[700] },
	} {
		wrong := a
		wrong.Order = slices.Clone(a.Order)
		change(&wrong)
		require.ErrorContains(t, wrong.Verify(), name)
	}
}

// Any program can verify an order with SHA-256 alone: these values were calculated with Python.
func TestTheOrderHasTestVectors(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("testdata/vectors.txt")
	require.NoError(t, err)
	var got strings.Builder
	require.NoError(t, audit(3, "millrace").Write(&got))
	require.Equal(t, string(want), got.String())
}

// The order depends on the set of users, not on the order in which they entered.
func TestTheOrderOfEntryChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.String(), 1, 50, rapid.ID).Draw(t, "users")
		mixed := rapid.Permutation(names).Draw(t, "mixed")
		order := func(names []string) (sorted []shuffle.Hash) {
			users := make([]shuffle.Hash, len(names))
			for i, name := range names {
				users[i] = shuffle.User("42", name)
			}
			for _, i := range shuffle.New("secret", shuffle.Digest(users)).Order(users) {
				sorted = append(sorted, users[i])
			}
			return sorted
		}
		require.Equal(t, order(names), order(mixed))
	})
}

// Each user is first about equally often, over many secrets.
func TestEachUserIsFirstEquallyOften(t *testing.T) {
	t.Parallel()
	const draws, users = 8000, 8
	first := map[shuffle.Hash]int{}
	for i := range draws {
		first[audit(users, fmt.Sprint("secret ", i)).Order[0]]++
	}
	for user, n := range first {
		require.InDelta(t, draws/users, n, 150, "%s", user) // five standard deviations
	}
	require.Len(t, first, users)
}

func TestMistakesInAnAuditHaveTheirLine(t *testing.T) {
	t.Parallel()
	_, err := shuffle.Read(strings.NewReader("no JSON\n"))
	require.ErrorContains(t, err, "line 1 must be a JSON object")
	_, err = shuffle.Read(strings.NewReader("{}\nabc\n"))
	require.ErrorContains(t, err, "line 2 must be a hash of 64 hexadecimal digits")
	require.NotEqual(t, shuffle.NewSecret(), shuffle.NewSecret())
	require.Len(t, shuffle.NewSecret(), 64)
}
