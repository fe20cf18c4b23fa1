package app

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// A person is asked for what the flags leave open, and for nothing else.
func TestAPersonIsAskedForTheFactsOfAnAPI(t *testing.T) {
	t.Parallel()
	for answers, want := range map[string]effect{
		"key\n23h\n":   {Repeat: "ByKey", Lookup: true, KeyTTL: "23 * time.Hour", keyTTL: 23 * time.Hour},
		"lookup\n90s":  {Repeat: "ByLookup", Lookup: true, UnderWay: "90 * time.Second", underWay: 90 * time.Second},
		" never \nkey": {Repeat: "Never"},
		"always\n":     {Repeat: "Always"},
	} {
		var out bytes.Buffer
		q := questions{in: bufio.NewReader(strings.NewReader(answers)), out: &out}
		got, err := q.effect("", 0, 0)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Contains(t, out.String(), "it knows an idempotency key and executes it once")
		require.Equal(t, want.KeyTTL != "", strings.Contains(out.String(), "surely know an idempotency key"))
	}
	_, err := questions{in: bufio.NewReader(strings.NewReader("key\nlong\n")), out: &bytes.Buffer{}}.effect("", 0, 0)
	require.EqualError(t, err, `--key-ttl must be a time such as 90s or 23h, got "long"`)
	_, err = questions{in: bufio.NewReader(strings.NewReader("")), out: &bytes.Buffer{}}.effect("key", 0, 0)
	require.ErrorContains(t, err, "--key-ttl: no answer")
}

// A command that takes long says so while it runs, and its own output is what an error shows.
func TestACommandThatTakesLongShowsLife(t *testing.T) {
	t.Parallel()
	var said pipelinetest.Buffer
	h := &Host{opts: Options{Stderr: &said}}
	file := filepath.Join(t.TempDir(), "go")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `echo compiled; until test -e "$0"; do sleep 0.01; done; exit 3`, file)
	ended := make(chan error, 1)
	var out []byte
	go func() {
		var err error
		out, err = h.runAlive(cmd, "make wire", time.Millisecond)
		ended <- err
	}()
	require.Eventually(t, func() bool {
		return strings.Contains(said.String(), "make wire has run for 0s; the first run compiles for a minute or two\n")
	}, time.Minute, time.Millisecond)
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	var exit *exec.ExitError
	require.ErrorAs(t, <-ended, &exit)
	require.Equal(t, 3, exit.ExitCode())
	require.Equal(t, "compiled\n", string(out))
}
