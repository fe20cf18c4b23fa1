package simulator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("MONEYSIM_TEST_VICTIM"); path != "" {
		os.Exit(victim(path))
	}
	goleak.VerifyTestMain(m)
}

// start returns a running server that is stopped at the end of the test.
func start(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := New(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.Stop(ctx))
	})
	return s
}

// answer is what came of a request.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

// caller sends requests, each on a connection of its own.
type caller struct {
	base    string
	timeout time.Duration
}

func (c caller) do(method, path, key, body string) answer {
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	return do(ctx, method, c.base+path, key, body)
}

func do(ctx context.Context, method, url, key, body string) answer {
	transport := &http.Transport{DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(b), err: err}
}

// hangUp sends a charge and disconnects when reached is true.
func (c caller) hangUp(t *testing.T, promotion, target, amount int, reached func() bool) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	got := make(chan answer, 1)
	go func() {
		got <- do(ctx, http.MethodPost, c.base+"/v1/points/charges", fmt.Sprintf("POINT:%d:%d", promotion, target), pointBody(promotion, target, amount))
	}()
	require.Eventually(t, reached, c.timeout, time.Millisecond)
	cancel()
	return <-got
}

func (c caller) point(promotion, target, amount int) answer {
	return c.do(http.MethodPost, "/v1/points/charges", fmt.Sprintf("POINT:%d:%d", promotion, target), pointBody(promotion, target, amount))
}

func pointBody(promotion, target, amount int) string {
	return fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":9,"targetId":%d,"amount":%d}`, promotion, target, amount)
}

func call(s *Server) caller { return caller{s.URL(), 20 * time.Second} }
