package app

import (
	"bufio"
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
