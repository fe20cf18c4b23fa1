package waitingroom

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/telemetry"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// Shops and operators have two names with a file each. The new token goes into the file that is not in use, while
// they send requests at the addresses that the settings open. None is refused, and a token that was replaced is.
func TestTokensOfTheSettingsAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	shared, tokens, hubs, ops := redis.New(), token.New(), sse.New(), telemetry.New()
	server, dead := web.New(tokens, hubs), deadletter.New(kafka.New(), shared)
	shared.Settings().(*redis.Config).Addrs = []string{redistest.Mini(t).Addr}
	public := server.Settings().(*web.Config)
	public.Auth.Header, public.TrustedProxies = "X-User", []string{"127.0.0.1"} // the users of the room
	public.Listen, ops.Settings().(*telemetry.Config).Listen = "127.0.0.1:0", "127.0.0.1:0"
	p := New(shared, dead, tokens, hubs, server)

	dir := t.TempDir()
	file := func(of string, n int) string { return filepath.Join(dir, fmt.Sprint(of, n%2)) }
	value := func(of string, n int) string { return fmt.Sprintf("token %d of the %s", n, of) }
	secrets := func(of string) map[string]setting.Secret {
		all := map[string]setting.Secret{}
		for n := range 2 {
			pipelinetest.Replace(t, file(of, n), []byte(value(of, n)+"\n"))
			var s setting.Secret
			require.NoError(t, s.UnmarshalText([]byte("file:"+file(of, n))))
			all[fmt.Sprint(of, n)] = s
		}
		return all
	}
	p.config.ShopTokens, p.config.AdminTokens = secrets("shop"), secrets("operator")
	require.NoError(t, p.config.Validate())
	registry, err := pipeline.NewRegistry(pipeline.Env{Instance: "rotated", Logger: redistest.Logger(t)}, shared, dead, reclaim.New(shared), tokens, hubs, server, ops, p)
	require.NoError(t, err)
	runtime := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{Wrap: middleware.New(registry, middleware.Options{}).Wrap, StopTimeout: time.Minute})
	require.NoError(t, runtime.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, runtime.Stop(context.Background())) })
	require.NoError(t, pipeline.Offers[operators](registry)[0].rooms.Create(t.Context(), "42"))

	for of, request := range map[string]struct {
		address, path string
		taken         int // the status for whoever has a token
	}{
		"shop":     {server.Addr(), "/events/42/entry/verify", http.StatusBadRequest}, // the body has no entry token
		"operator": {ops.Addr(), "/api/v1/rooms/42/status", http.StatusOK},
	} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			status := func(token string) (int, error) {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+request.address+request.path, strings.NewReader(""))
				if err != nil {
					return 0, err
				}
				r.Header.Set("Authorization", "Bearer "+token)
				answer, err := http.DefaultClient.Do(r)
				if err != nil {
					return 0, err
				}
				defer answer.Body.Close()
				_, err = io.Copy(io.Discard, answer.Body)
				return answer.StatusCode, err
			}
			var current atomic.Int64
			load := pipelinetest.StartLoad(t, 4, func(int) error {
				n := int(current.Load())
				got, err := status(value(of, n))
				if err == nil && got != request.taken {
					err = fmt.Errorf("token %d was answered with status %d", n, got)
				}
				return err
			})
			for n := 1; n <= 6; n++ {
				pipelinetest.Replace(t, file(of, n), []byte(value(of, n)+"\n"))
				current.Store(int64(n))
				load.More() // nobody has the token before any more
				if n >= 2 {
					got, err := status(value(of, n-2))
					require.NoError(t, err)
					require.Equal(t, http.StatusUnauthorized, got)
				}
			}
			load.Stop()
		})
	}
}
