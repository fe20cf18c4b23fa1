package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
)

func TestWatchRepeatsUntilCtrlC(t *testing.T) {
	t.Parallel()
	for terminal, want := range map[bool]string{
		false: "status 1\n\nstatus 2\nredis does not answer\n\nstatus 3\n",
		true:  "\x1b[H\x1b[2Jstatus 1\n\n\x1b[H\x1b[2Jstatus 2\nredis does not answer\n\n\x1b[H\x1b[2Jstatus 3\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*watchInterval+watchInterval/2)
			defer cancel()
			var out strings.Builder
			n := 0
			require.NoError(t, watch(ctx, &out, terminal, func() (operate.Answer, error) {
				n++
				answer := operate.Answer{Value: n, Lines: []string{fmt.Sprint("status ", n)}}
				if n == 2 {
					return answer, errors.New("redis does not answer")
				}
				return answer, nil
			}))
			require.Equal(t, want, out.String())
		})
	}
}

func TestWatchEndsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	broken := errors.New("no ledger")
	require.Equal(t, broken, watch(t.Context(), &strings.Builder{}, false, func() (operate.Answer, error) { return operate.Answer{}, broken }))

	ctx, ctrlC := context.WithCancel(t.Context())
	require.NoError(t, watch(ctx, &strings.Builder{}, false, func() (operate.Answer, error) {
		ctrlC()
		return operate.Answer{}, ctx.Err()
	}), "Ctrl-C during a read is no error")
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestWatchEndsWhenNobodyCanRead(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, watch(t.Context(), full{}, false, func() (operate.Answer, error) {
		return operate.Answer{Value: 1, Tables: []operate.Table{{Rows: [][]string{{"a"}}}}}, nil
	}), "no space left on device")
}
