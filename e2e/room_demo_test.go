package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/demo"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// A crowd passes a waiting room of two brokers and two dispatchers, of which one each is killed
// (SIGKILL). No user is overtaken or lost, no slot is lost, and no seat is sold twice.
func TestACrowdPassesAWaitingRoomWhileProcessesAreKilled(t *testing.T) {
	for _, name := range []string{"embedded", "redis", "valkey"} {
		t.Run(name, func(t *testing.T) {
			args := []string{"room", "demo", "--json", "--users", "100", "--seats", "40", "--concurrency", "20"}
			if name == "embedded" {
				tier.Default(t)
			} else {
				file := filepath.Join(t.TempDir(), "redis.yaml")
				require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "plugins: {redis: {addrs: [%q]}}\n", tier.Real(t, name)), 0o600))
				args = append(args, "--config", file)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			var out, said bytes.Buffer
			cmd := exec.CommandContext(ctx, binary(t), args...)
			cmd.Stdout, cmd.Stderr = &out, &said
			require.NoError(t, cmd.Run(), "%s%s", &out, &said)
			var r demo.Report
			require.NoError(t, json.Unmarshal(out.Bytes(), &r))
			require.True(t, r.OK(), "%+v", r)
			require.Equal(t, 2, r.Killed)
			require.Equal(t, []int{100, 40}, []int{r.Users, r.Sold})
			require.Zero(t, r.Leases)
		})
	}
}
