package oncehttp_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
)

// BenchmarkPost has 64 calls in flight over loopback. "client" and "net/http" call the same
// server in a process of its own. Their cpu-us/call compares this package with net/http alone.
func BenchmarkPost(b *testing.B) {
	url := "http://" + bareServer(b)
	b.Run("client", func(b *testing.B) { benchmarkClient(b, url) })
	b.Run("net/http", func(b *testing.B) { benchmarkCalls(b, netHTTP(b, url)) })
}

func benchmarkClient(b *testing.B, url string) {
	c := newClient(b, url, nil)
	benchmarkCalls(b, func(key string) error {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute) // the lease
		defer cancel()
		if a := post(ctx, c, key); a.Class != once.Done {
			return fmt.Errorf("unexpected answer %+v", a)
		}
		return nil
	})
}

// netHTTP is the shortest use of net/http: a request with a deadline, whose answer is read.
func netHTTP(b *testing.B, url string) func(key string) error {
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	b.Cleanup(transport.CloseIdleConnections)
	return func(key string) error {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/invoices", strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
}

func benchmarkCalls(b *testing.B, call func(key string) error) {
	var n atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(32)
	cpu := cpuTime()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := call("invoice:1:" + strconv.FormatInt(n.Add(1), 10)); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	b.ReportMetric((cpuTime()-cpu)*1e6/float64(b.N), "cpu-us/call")
}

// cpuTime returns the CPU seconds of this process.
func cpuTime() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

const serveEnv = "MILLRACE_TEST_BARE_SERVER"

// bareServer starts this test binary as a server, and returns its address.
func bareServer(b *testing.B) string {
	cmd := exec.Command(os.Args[0], "-test.run=^TestServeForBenchmark$")
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	alive, err := cmd.StdinPipe() // its end is the end of the server
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		alive.Close()
		cmd.Wait()
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	return strings.TrimSpace(addr)
}

// TestServeForBenchmark is the server of BenchmarkPost.
func TestServeForBenchmark(t *testing.T) {
	if os.Getenv(serveEnv) == "" {
		t.Skip("only in a process of its own")
	}
	s := newRawServer(t, createEverything)
	fmt.Println(s.Addr())
	io.Copy(io.Discard, os.Stdin)
}

// createEverything answers every POST in the cheapest way there is.
func createEverything(_ int, c *net.TCPConn) {
	const answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"id\":\"t-1\"}"
	const lengthHeader = "Content-Length: "
	in := bufio.NewReader(c)
	for length := 0; ; length = 0 {
		for {
			line, err := in.ReadSlice('\n')
			if err != nil {
				return
			}
			if len(line) == 2 {
				break
			}
			if strings.HasPrefix(string(line), lengthHeader) {
				fmt.Sscan(string(line[len(lengthHeader):]), &length)
			}
		}
		if _, err := in.Discard(length); err != nil {
			return
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}
