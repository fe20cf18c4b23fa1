package app

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDurationsInTheLogHaveUnits(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"text": "at_most=15s", "json": `"at_most":"15s"`} {
		var out bytes.Buffer
		newLogger(&out, LogSettings{Format: format}, nil).Info("waiting", slog.Duration("at_most", 15*time.Second))
		require.Contains(t, out.String(), want)
	}
}
