package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/streams"
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

// The command that lists dead letters refuses a subject that has none, so it is named only for one
// that has.
func TestStatusNamesTheCommandForDeadLetters(t *testing.T) {
	t.Parallel()
	for dead, want := range map[int64]string{
		0: "  dead letters  0 written, conflicts 0\n",
		3: "  dead letters  3 written, conflicts 1; those that wait: millrace deadletter list --subject POINT:77\n",
	} {
		var out strings.Builder
		s := Status{Type: "POINT", Promotion: 77}
		s.Dead, s.Conflict = dead, dead/3
		require.NoError(t, s.write(&out))
		require.Contains(t, out.String(), want)
	}
}

// Without an answer of Redis nothing is known about the readers of a stream, which is not the same
// as no reader.
func TestStatusSeparatesNoReadersFromNoAnswer(t *testing.T) {
	t.Parallel()
	for want, instances := range map[string][]streams.InstanceStatus{
		"the instances that read its stream are not known": nil,
		"no instance reads its stream":                     {},
		"INSTANCE":                                         {{Instance: "a"}},
	} {
		var out strings.Builder
		require.NoError(t, Status{Instances: instances}.write(&out))
		require.Contains(t, out.String(), want)
		if instances == nil {
			require.NotContains(t, out.String(), "no instance")
		}
	}
}
