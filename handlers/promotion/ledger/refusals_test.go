package ledger

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestALateLineAboutRefusalsSaysWhenTheLastWas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := logRefusals(slog.New(slog.NewTextHandler(&out, nil)))
		require.NoError(t, s.Start(t.Context()))
		s.Add(refusalKey{what: "settle"}, refused{err: errors.New("no")})
		last := time.Now()
		s.Add(refusalKey{what: "settle"}, refused{err: errors.New("no")})
		time.Sleep(2 * time.Second)
		require.NoError(t, s.Stop(context.Background()))
		require.Contains(t, out.String(), "last_at="+last.Format("2006-01-02T15:04:05.000Z07:00"))
	})
}
