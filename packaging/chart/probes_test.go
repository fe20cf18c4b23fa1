package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// away has all roles, with servers that do not answer. A process then waits for them, and its probes answer.
const away = `
settings:
  plugins:
    telemetry: {listen: ":%d"}
    redis: {addrs: ["127.0.0.1:1"], password: "", tls: {enabled: false}}
    token: {keys: [{kid: a, file: /run/secrets/millrace/token.pem}]}
    waitingroom:
      event_service: {url: "http://127.0.0.1:1"}
      shop_tokens: {shop: "file:/run/secrets/millrace/shop-token"}
    web: {listen: ":%d", drain_delay: 0s, auth: {issuer: a, audience: b, jwks_url: "http://127.0.0.1:1"}}
roles:
  worker:
    settings:
      plugins:
        kafka: {brokers: ["127.0.0.1:1"], tls: {enabled: false}, sasl: {mechanism: "", user: "", password: ""}}
        deadletter: {store: {dsn: "postgres://127.0.0.1:1/a"}}
        promotion: {ledger: {dsn: "postgres://127.0.0.1:1/a"}}
  router: {enabled: true}
  gateway: {enabled: true}
  broker: {enabled: true}
  dispatcher: {enabled: true}
`

// The Job has commands that the binary knows, with settings that it accepts: it asks for a server.
func TestTheJobReachesForItsServers(t *testing.T) {
	t.Parallel()
	binary, err := millrace()
	require.NoError(t, err)
	docs := documents(t, laid(t, fmt.Sprintf(away+"migration: {settings: {start_timeout: 100ms}}\n", freePort(t), freePort(t))))
	o, err := decode(docs)
	require.NoError(t, err)
	pod, dir := o.jobs[0].Spec.Template.Spec, t.TempDir()
	file := filepath.Join(dir, "millrace.yaml")
	require.NoError(t, os.WriteFile(file, []byte(writeFiles(t, dir, settingsOf(t, docs)["millrace-migration"])), 0o600))
	for _, c := range append(pod.InitContainers, pod.Containers...) {
		cmd := exec.CommandContext(t.Context(), binary, append(c.Args[:len(c.Args)-1:len(c.Args)-1], file)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Equal(t, 3, cmd.ProcessState.ExitCode(), "%s: %s", c.Name, out)
		require.Contains(t, string(out), "127.0.0.1:1", c.Name)
	}
	require.Equal(t, "2m", pod.Containers[0].Env[1].Value, "topics create waits for Kafka")
}

// freePort returns a port of loopback without a listener, and each port only once. It is below the ports of
// outgoing connections, one of which could take it before the process listens, and not among those that the
// scenarios use.
func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := 25_000 + rand.IntN(5_000)
		if _, given := givenPorts.LoadOrStore(port, true); given {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		require.NoError(t, l.Close())
		return port
	}
	require.FailNow(t, "no free port from 25000 to 29999")
	return 0
}

var givenPorts sync.Map

// get returns the status and the body of a probe as a kubelet sends it, and 0 while nobody listens.
func get(t *testing.T, port int, path string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", port, path), nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	var body json.RawMessage
	_ = json.NewDecoder(answer.Body).Decode(&body)
	return answer.StatusCode, string(body)
}

// Each role is started with the settings and the arguments of its Deployment. It has the endpoints of its
// probes on the port of its Deployment, also while it waits for servers, and SIGTERM ends it.
func TestProbesAreThoseOfTheProcess(t *testing.T) {
	t.Parallel()
	binary, err := millrace()
	require.NoError(t, err)
	for _, role := range []string{"worker", "router", "gateway", "broker", "dispatcher"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			port := freePort(t)
			docs := documents(t, laid(t, fmt.Sprintf(away, port, freePort(t))))
			o, err := decode(docs)
			require.NoError(t, err)
			for _, d := range o.deployments {
				if d.Name != "millrace-"+role {
					continue
				}
				dir, c := t.TempDir(), d.Spec.Template.Spec.Containers[0]
				require.EqualValues(t, port, c.Ports[0].ContainerPort)
				text := strings.ReplaceAll(settingsOf(t, docs)[d.Name], "listen: :", "listen: 127.0.0.1:")
				file := filepath.Join(dir, "millrace.yaml")
				require.NoError(t, os.WriteFile(file, []byte(writeFiles(t, dir, text)), 0o600))
				args := append(c.Args[:len(c.Args)-1:len(c.Args)-1], file)
				output, err := os.Create(filepath.Join(dir, "output"))
				require.NoError(t, err)
				defer output.Close()
				cmd := exec.CommandContext(t.Context(), binary, args...)
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
				cmd.Stdout, cmd.Stderr = output, output
				require.NoError(t, cmd.Start())
				log := func() string {
					text, _ := os.ReadFile(output.Name())
					return string(text)
				}
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				require.Eventually(t, func() bool {
					status, _ := get(t, port, c.StartupProbe.HTTPGet.Path)
					return status == http.StatusOK || len(ended) > 0
				}, 2*time.Minute, 20*time.Millisecond)
				status, _ := get(t, port, c.LivenessProbe.HTTPGet.Path)
				require.Equal(t, http.StatusOK, status, log())
				status, body := get(t, port, c.ReadinessProbe.HTTPGet.Path)
				require.Equal(t, http.StatusServiceUnavailable, status, log())
				require.Contains(t, body, `"ready"`)
				status, _ = get(t, port, "/nothing")
				require.Equal(t, http.StatusNotFound, status)
				require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
				select {
				case <-ended:
				case <-time.After(2 * time.Minute):
					require.FailNow(t, "SIGTERM did not end it", log())
				}
				return
			}
			require.FailNow(t, "no Deployment")
		})
	}
}
