package once_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// logged is a log that a test reads while others write it.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// lines returns the lines about calls.
func (l *logged) lines() (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, "a call for an effect failed") || strings.Contains(line, "are answered again") {
			found = append(found, line)
		}
	}
	return found
}

// The first call that fails is told with its kind and what follows, long before a breaker opens, and so is the first one
// that is answered again. What follows within a minute is not told.
func TestTheFirstFailureOfAKindIsTold(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.ByKey, nil)
	down := oncetest.Step{Answer: once.Answer{Class: once.NotSent, Text: "connection refused"}}
	p.far.Next(oncetest.Step{Answer: once.Answer{Class: once.Throttled, Text: "429"}}, oncetest.Step{Answer: once.Answer{Class: once.Unrecognized, Text: "502 Bad Gateway"}}, down, down)
	log := &logged{}
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "a", Logger: slog.New(slog.NewTextHandler(log, nil))}, w.Once, p)
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	require.NoError(t, rt.Start(t.Context()))
	_, err = p.effects.Enqueue(t.Context(), one)
	require.NoError(t, err)
	require.Equal(t, rules.Success, oncetest.SettledInTurns(t, w, p.effects, one.key()).State)
	require.NoError(t, rt.Stop(t.Context()))
	lines := log.lines()
	require.Len(t, lines, 2, "being asked to wait is an answer: %s", lines)
	require.Regexp(t, `level=WARN .*plugin=once kind=invoice effect=invoice:acme:17 class=unrecognized answer="502 Bad Gateway" next="it is (called for|perhaps done, and is looked up or sent) again in [0-9.]+m?s" times=1\n$`, lines[0])
	require.Regexp(t, `level=INFO .*plugin=once kind=invoice times=1\n$`, lines[1])
}
