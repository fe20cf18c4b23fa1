package ledger

import (
	"context"
	"io"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// A server whose password is rotated ends a connection after the commit of a claim, and refuses the next ones
// until the client has the new password. The claim still learns which leases it has.
func TestALostClaimIsFoundAfterRefusals(t *testing.T) {
	t.Parallel()
	l := newTestDB("sqlite:" + filepath.Join(t.TempDir(), "once.db")).open(t)
	mustAccept(t, l, record("acme", 1))
	s := &rotated{store: l.store}
	l.store = s
	claimed := claimAll(t, l, "invoice")
	require.Len(t, claimed, 1)
	require.Equal(t, 3, s.refused)
}

// rotated loses the answer of the first commit with writes, and refuses three connections after it.
type rotated struct {
	store
	lost    bool
	refused int
}

func (s *rotated) begin(ctx context.Context, w readRequest) (transaction, *readResult, error) {
	if s.lost && s.refused < 3 {
		s.refused++
		return nil, nil, &pgconn.PgError{Code: "28P01", Message: "password authentication failed"}
	}
	tx, read, err := s.store.begin(ctx, w)
	return &losesAnswer{tx, s}, read, err
}

type losesAnswer struct {
	transaction
	of *rotated
}

func (tx *losesAnswer) commit(ctx context.Context, writes *writeSet) error {
	if err := tx.transaction.commit(ctx, writes); err != nil || tx.of.lost || len(writes.rows) == 0 {
		return err
	}
	tx.of.lost = true
	return io.ErrUnexpectedEOF
}
