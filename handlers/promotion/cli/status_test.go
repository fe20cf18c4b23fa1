package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestWatchRepeatsUntilCtrlC(t *testing.T) {
	t.Parallel()
	for terminal, want := range map[bool]string{
		false: "status 1\n\nstatus 2\n\nstatus 3\n",
		true:  "\x1b[H\x1b[2Jstatus 1\n\n\x1b[H\x1b[2Jstatus 2\n\n\x1b[H\x1b[2Jstatus 3\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*watchInterval+watchInterval/2)
			defer cancel()
			var out strings.Builder
			n := 0
			require.NoError(t, repeat(ctx, &out, terminal, func() error {
				n++
				fmt.Fprintln(&out, "status", n)
				return nil
			}))
			require.Equal(t, want, out.String())
		})
	}
}

func TestWatchEndsWithAnErrorOfTheLedger(t *testing.T) {
	t.Parallel()
	broken := errors.New("no ledger")
	require.Equal(t, broken, repeat(t.Context(), &strings.Builder{}, false, func() error { return broken }))

	ctx, ctrlC := context.WithCancel(t.Context())
	require.NoError(t, repeat(ctx, &strings.Builder{}, false, func() error {
		ctrlC()
		return ctx.Err()
	}), "Ctrl-C during the read of the ledger is no error")
}
