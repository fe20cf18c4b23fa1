package campaign

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	require.NoError(t, WithExitCode(nil))
	own := &app.ExitError{Code: app.ExitUsage, Err: ledger.ErrNotFound}
	require.Equal(t, error(own), WithExitCode(own), "it has its exit code")
	for _, err := range []error{ledger.ErrNotFound, ledger.ErrCancelled, ledger.ErrRefused} {
		var exit *app.ExitError
		require.ErrorAs(t, WithExitCode(fmt.Errorf("pause: %w", err)), &exit)
		require.Equal(t, app.ExitBad, exit.Code)
	}
	require.ErrorIs(t, WithExitCode(fmt.Errorf("read: %w", ledger.ErrUnavailable)), pipeline.ErrUnavailable)
	require.NotErrorIs(t, WithExitCode(errors.New("a bug")), pipeline.ErrUnavailable)
	require.ErrorIs(t, WithExitCode(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), pipeline.ErrUnavailable)
	require.NotErrorIs(t, WithExitCode(&fs.PathError{Op: "open", Path: "differing.csv", Err: syscall.EROFS}), pipeline.ErrUnavailable, "a file is no server")
}
