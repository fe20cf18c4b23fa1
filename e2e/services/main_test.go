package main

import (
	"bytes"
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-io/millrace/e2e/services/servers"
)

func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	env := map[string]string{}
	call := func(args ...string) (code int, out string) {
		var o bytes.Buffer
		code = run(t.Context(), args, func(name string) string { return env[name] }, &o, &o)
		return code, o.String()
	}
	for _, args := range [][]string{nil, {"start"}, {"up", "oracle"}, {"up", "local"}, {"env", "local", "oracle"}, {"kill"}, {"restart"}} {
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

	delete(env, "MILLRACE_SERVICES_PORT_OFFSET")
	_, out = call("status", "postgres")
	require.Contains(t, out, "127.0.0.1:15432", "nothing was started with the offset")
}

// Commands after up find its servers without the variable: with the default ports they would report, and give
// to tests, those of another clone.
func TestTheOffsetOfUpIsRemembered(t *testing.T) {
	t.Chdir(t.TempDir())
	canceled, cancel := context.WithCancel(t.Context())
	cancel() // up starts nothing
	env := map[string]string{"MILLRACE_SERVICES_PORT_OFFSET": "1000", "MILLRACE_TEST_REDIS": "127.0.0.1:1"}
	call := func(args ...string) (code int, out string) {
		var o bytes.Buffer
		code = run(canceled, args, func(name string) string { return env[name] }, &o, &o)
		return code, o.String()
	}
	code, _ := call("up", "redis")
	require.Equal(t, 3, code)
	env = nil
	for _, command := range []string{"status", "env"} {
		_, out := call(command, "postgres")
		require.Contains(t, out, "127.0.0.1:16432", command)
	}
	env = map[string]string{"MILLRACE_SERVICES_PORT_OFFSET": "0"}
	_, out := call("status", "postgres")
	require.Contains(t, out, "127.0.0.1:15432", "the variable counts first")
	require.NoError(t, os.WriteFile(offsetFile(), []byte("many"), 0o600))
	env = nil
	code, out = call("status", "postgres")
	require.Equal(t, 2, code)
	require.Contains(t, out, "port_offset")
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

// The settings are all addresses of the profile, with the ports of the servers.
func TestEnvOfTheProfileLocal(t *testing.T) {
	t.Parallel()
	list := func(local bool, reports ...servers.Report) string {
		var out, errOut bytes.Buffer
		printEnv(&out, &errOut, reports, local)
		return out.String()
	}
	kafka := servers.Report{Name: servers.Kafka, Addr: "127.0.0.1:19092"}
	redis := servers.Report{Name: servers.Redis, Addr: "127.0.0.1:16379"}
	valkey := servers.Report{Name: servers.Valkey, Addr: "127.0.0.1:16380"}
	postgres := servers.Report{Name: servers.Postgres, Addr: "postgres://postgres@127.0.0.1:15432/millrace?sslmode=disable"}
	require.NotContains(t, list(false, kafka, redis, valkey, postgres), "MILLRACE__", "a test must not follow them")

	text, err := os.ReadFile("../../configs/profiles/local.yaml")
	require.NoError(t, err)
	var profile map[string]any
	require.NoError(t, yaml.Unmarshal(text, &profile))
	want := "export MILLRACE__PROFILE='local'\n"
	got := list(true, kafka, redis, valkey, postgres)
	for _, r := range []servers.Report{kafka, redis, postgres} {
		for _, path := range pathsOf(profile, r.Addr, "MILLRACE") {
			want += "export " + path + "='" + r.Addr + "'\n"
		}
	}
	require.Equal(t, want, strings.Join(slices.DeleteFunc(strings.SplitAfter(got, "\n"), func(line string) bool {
		return strings.Contains(line, "MILLRACE_TEST_")
	}), ""))
	require.Contains(t, got, "export MILLRACE_TEST_VALKEY='127.0.0.1:16380'\n")
	require.Contains(t, list(true, valkey), "export MILLRACE__PLUGINS__REDIS__ADDRS='127.0.0.1:16380'\n")
}

// pathsOf returns the settings with a value, in the order of their names, as the variables have them.
func pathsOf(settings any, value, path string) (found []string) {
	switch s := settings.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(s)) {
			found = append(found, pathsOf(s[key], value, path+"__"+strings.ToUpper(key))...)
		}
	case []any:
		for _, one := range s {
			found = append(found, pathsOf(one, value, path)...)
		}
	case string:
		if s == value {
			return []string{path}
		}
	}
	return found
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
