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

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// runDemo runs a demo on a Redis, embedded or a real one, and reads its report. Its exit code is
// its verdict.
func runDemo(t *testing.T, redis string, report any, args ...string) {
	t.Helper()
	if redis == "embedded" {
		tier.Default(t)
	} else {
		file := filepath.Join(t.TempDir(), "redis.yaml")
		addr := tier.Real(t, redis)
		database := redistest.Server{Addr: addr}.Database(t) // other tests have rooms, too
		require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "plugins: {redis: {addrs: [%q], db: %d}}\n", addr, database), 0o600))
		args = append(args, "--config", file)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, binary(t), append(args, "--json")...)
	cmd.Stdout, cmd.Stderr = &out, &said
	require.NoError(t, cmd.Run(), "%s%s", &out, &said)
	require.NoError(t, json.Unmarshal(out.Bytes(), report))
	if redis == "embedded" {
		require.Regexp(t, "^Nothing in this environment is real: ", said.String(), "the first line is for a person")
	}
}
