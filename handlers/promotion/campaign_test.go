package promotion

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

func TestAnswersOfACommand(t *testing.T) {
	t.Parallel()
	require.NoError(t, bad(nil))
	own := &app.ExitError{Code: app.ExitUsage, Err: ledger.ErrNotFound}
	require.Equal(t, error(own), bad(own), "it has its answer")
	for _, err := range []error{ledger.ErrNotFound, ledger.ErrCancelled, ledger.ErrRefused} {
		var answer *app.ExitError
		require.ErrorAs(t, bad(fmt.Errorf("pause: %w", err)), &answer)
		require.Equal(t, app.ExitBad, answer.Code)
	}
	require.ErrorIs(t, bad(fmt.Errorf("books: %w", ledger.ErrUnavailable)), pipeline.ErrUnavailable)
	require.NotErrorIs(t, bad(errors.New("a bug")), pipeline.ErrUnavailable)
}
