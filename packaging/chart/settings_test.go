package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// millrace is the binary of this checkout. It is built as those of the image and the stack are, because a build
// with other flags compiles everything once more.
var millrace = sync.OnceValues(func() (string, error) {
	dist := filepath.Join(workDir, "binary")
	cmd := exec.Command("make", "--no-print-directory", "-C", "../..", "binary", "DIST="+dist)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKEFLAGS=") || strings.HasPrefix(v, "MAKELEVEL=") || strings.HasPrefix(v, "MFLAGS=")
	})
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make binary: %w\n%s", err, out)
	}
	return filepath.Join(dist, runtime.GOOS+"-"+runtime.GOARCH, "millrace"), nil
})

// writeFiles writes what the settings of the examples read: each path in text that a pod would have is one
// in dir afterwards.
func writeFiles(t *testing.T, dir, text string) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	require.NoError(t, err)
	keyPEM := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	certificatePEM := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))
	return regexp.MustCompile(`/(?:run/secrets/millrace|etc/[a-z]+)/[a-z.-]+`).ReplaceAllStringFunc(text, func(path string) string {
		file := filepath.Join(dir, filepath.FromSlash(path))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		content := "secret-of-" + filepath.Base(path)
		switch name := filepath.Base(path); {
		case strings.HasSuffix(name, "-dsn"):
			content = "postgres://millrace:x@db.example.com/payouts?sslmode=verify-full"
		case name == "token.pem" || name == "tls.key":
			content = keyPEM
		case name == "ca.pem" || name == "tls.crt":
			content = certificatePEM
		}
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		return file
	})
}

// validate returns the exit code and the output of `millrace validate` for the settings of a ConfigMap.
func validate(t *testing.T, text string) (int, string) {
	t.Helper()
	binary, err := millrace()
	require.NoError(t, err)
	dir := t.TempDir()
	return validateIn(t, binary, dir, writeFiles(t, dir, text))
}

func validateIn(t *testing.T, binary, dir, text string, flags ...string) (int, string) {
	t.Helper()
	file := filepath.Join(dir, "millrace.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"validate", "--config", file}, flags...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), string(out)
	}
	require.NoError(t, err)
	return 0, string(out)
}

// settingsOf returns the files of settings that a release has, by the name of their ConfigMap.
func settingsOf(t *testing.T, docs []string) map[string]string {
	t.Helper()
	o, err := decode(docs)
	require.NoError(t, err)
	all := map[string]string{}
	for _, m := range o.configMaps {
		if text, has := m.Data["millrace.yaml"]; has {
			all[m.Name] = text
		}
	}
	require.NotEmpty(t, all)
	return all
}

func TestTheBinaryAcceptsTheSettings(t *testing.T) {
	t.Parallel()
	for _, file := range examples(t) {
		for name, text := range settingsOf(t, documents(t, exampleValues(t, file))) {
			t.Run(filepath.Base(file)+"/"+name, func(t *testing.T) {
				t.Parallel()
				code, out := validate(t, text)
				require.Zero(t, code, "%s\n%s", out, text)
				binary, err := millrace()
				require.NoError(t, err)
				code, out = validateIn(t, binary, t.TempDir(), text, "--allow-unset-secrets")
				require.Zero(t, code, "the text of the ConfigMap, without the files of a pod: %s\n%s", out, text)
			})
		}
	}
	v := exampleValues(t, "examples/minimal.yaml")
	v["settings"] = values(t, "plugins: {redis: {adrs: [a:1]}}")
	code, out := validate(t, settingsOf(t, documents(t, v))["millrace-worker"])
	require.Equal(t, 2, code)
	require.Contains(t, out, "plugins.redis.adrs: unknown setting")
}

// setting returns a value of settings, or nil.
func setting(t *testing.T, text string, path ...string) any {
	t.Helper()
	var node any
	require.NoError(t, yaml.Unmarshal([]byte(text), &node))
	for _, key := range path {
		section, _ := node.(map[string]any)
		node = section[key]
	}
	return node
}

func TestSettingsAreLaidOverEachOther(t *testing.T) {
	t.Parallel()
	v := exampleValues(t, "examples/minimal.yaml")
	v["settings"] = values(t, "{log: {format: text, level: warn}, start_timeout: 2m, plugins: {kafka: {window: 64, window_bytes: 33554432}}}")
	v["roles"].(map[string]any)["worker"].(map[string]any)["settings"] = values(t,
		`{migrate: true, log: {level: error}, plugins: {redis: {password: "", trim: false, max_retries: 0}, kafka: {brokers: [b:1], window: null, sasl: {user: a}}, promotion: {money_api: {url: "https://money.example.com"}}}}`)
	v["migration"] = values(t, `settings: {plugins: {promotion: {ledger: {dsn: "file:/run/secrets/millrace/migrator-dsn"}}}}`)
	all := settingsOf(t, documents(t, v))
	worker, job := all["millrace-worker"], all["millrace-migration"]
	for _, tc := range []struct {
		want any
		path []string
	}{
		{"production", []string{"profile"}},
		{"text", []string{"log", "format"}},
		{"error", []string{"log", "level"}},
		{"2m", []string{"start_timeout"}},
		{true, []string{"migrate"}},
		{"", []string{"plugins", "redis", "password"}},
		{false, []string{"plugins", "redis", "trim"}},
		{0.0, []string{"plugins", "redis", "max_retries"}},
		{[]any{"b:1"}, []string{"plugins", "kafka", "brokers"}},
		{64.0, []string{"plugins", "kafka", "window"}},
		{33554432.0, []string{"plugins", "kafka", "window_bytes"}},
		{":9464", []string{"plugins", "telemetry", "listen"}},
		{"file:/run/secrets/millrace/ledger-dsn", []string{"plugins", "promotion", "ledger", "dsn"}},
	} {
		require.Equal(t, tc.want, setting(t, worker, tc.path...), tc.path)
	}
	require.Contains(t, worker, "window_bytes: 33554432\n", "as it was written")
	require.Equal(t, "file:/run/secrets/millrace/migrator-dsn", setting(t, job, "plugins", "promotion", "ledger", "dsn"))
	require.Equal(t, "file:/run/secrets/millrace/ledger-dsn", setting(t, job, "plugins", "deadletter", "store", "dsn"))
	code, out := validate(t, worker)
	require.Zero(t, code, out)
}

// A Job with a DSN of its own has one for each store, because the user of the service can't migrate those that it omits.
func TestTheJobMigratesEachStore(t *testing.T) {
	t.Parallel()
	reference, err := os.ReadFile("../../docs/settings.md")
	require.NoError(t, err)
	page, err := os.ReadFile("../../docs/kubernetes.md")
	require.NoError(t, err)
	stores := regexp.MustCompile("`(plugins[a-z_.]+\\.dsn)`").FindAllStringSubmatch(string(reference), -1)
	require.Len(t, stores, 3)
	checked := 0
	for _, file := range examples(t) {
		text, err := yaml.Marshal(exampleValues(t, file))
		require.NoError(t, err)
		if !strings.Contains(string(text), "dsn: ") {
			continue
		}
		checked++
		for _, store := range stores {
			path := append([]string{"migration", "settings"}, strings.Split(store[1], ".")...)
			require.NotNil(t, setting(t, string(text), path...), "%s: %s", file, store[1])
			require.Contains(t, string(page), "`"+store[1]+"`")
		}
	}
	require.Equal(t, 1, checked)
}
