package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	env := map[string]string{}
	call := func(args ...string) (code int, out string) {
		var o bytes.Buffer
		code = run(t.Context(), args, func(name string) string { return env[name] }, &o, &o)
		return code, o.String()
	}
	for _, args := range [][]string{nil, {"start"}, {"up", "oracle"}, {"kill"}, {"restart"}} {
		code, out := call(args...)
		require.Equal(t, 2, code, args)
		require.Contains(t, out, "usage: go run ./e2e/services", args)
	}
	code, out := call("status", "redis")
	require.Equal(t, 3, code)
	require.Contains(t, out, "not available: not up")
	code, out = call("env", "redis")
	require.Equal(t, 3, code)
	require.NotContains(t, out, "export", "what doesn't answer is no address")
	code, _ = call("down")
	require.Zero(t, code, "nothing to stop is fine")

	env["MILLRACE_SERVICES_PORT_OFFSET"] = "many"
	code, _ = call("status")
	require.Equal(t, 2, code)
	env["MILLRACE_SERVICES_PORT_OFFSET"] = "1000"
	_, out = call("status", "postgres")
	require.Contains(t, out, "127.0.0.1:16432")
}

func TestEnvOfAGivenServer(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		addr := os.Getenv("MILLRACE_TEST_REDIS")
		if addr == "" {
			t.Skip("MILLRACE_TEST_REDIS is not set")
		}
		t.Chdir(t.TempDir())
		var out, errOut bytes.Buffer
		require.Zero(t, run(t.Context(), []string{"env", "redis"}, os.Getenv, &out, &errOut), errOut.String())
		require.Equal(t, "export MILLRACE_TEST_REDIS='"+addr+"'", strings.TrimSpace(out.String()))
	})
}

// TestComposeFile: every port that the program sets is one that the file reads.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("compose.yaml")
	require.NoError(t, err)
	for _, name := range []string{"KAFKA", "REDIS", "VALKEY", "POSTGRES"} {
		require.Contains(t, string(text), "${MILLRACE_PORT_"+name+":-")
	}
}
