package once_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// A ledger that does not answer is a line per minute and kind of work, with the kind and the number of
// failures. A line about each of them would hide all others.
func TestAnOutageOfTheLedgerIsALinePerMinute(t *testing.T) {
	t.Parallel()
	o := oncetest.New(t).Once
	p := newInvoices(o, once.ByKey, nil)
	var log bytes.Buffer
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "a", Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))}, o, p)
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	require.NoError(t, rt.Start(t.Context()))
	work := p.effects.Work()
	require.NoError(t, rt.Stop(t.Context()))
	log.Reset()
	synctest.Test(t, func(t *testing.T) {
		for range 61 { // seconds
			work(t.Context())
			time.Sleep(time.Second)
		}
	})
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	for text, kind := range map[string]string{
		"the ledger of effects was not swept": "", "the backlog of effects was not measured": " kind=invoice",
		"the commands are not told whether effects are called for": " kind=invoice",
	} {
		var found []string
		for _, line := range lines {
			if strings.Contains(line, text) {
				require.Contains(t, line, kind)
				found = append(found, line)
			}
		}
		require.Len(t, found, 2, log.String())
		require.Contains(t, found[0], " times=1")
		require.Regexp(t, " times=(59|60)", found[1], "the failure of a later loop may be written with its next line")
	}
	require.Len(t, lines, 6)
}
