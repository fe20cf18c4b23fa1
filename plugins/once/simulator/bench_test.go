package simulator

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkServer has 64 connections with one request each under way, from the cheapest client
// there is, in the same process.
func BenchmarkServer(b *testing.B) {
	for _, home := range []string{"memory", "file", "file-sync"} {
		b.Run(home, func(b *testing.B) {
			cfg := Config{SyncAlways: home == "file-sync"}
			if home != "memory" {
				cfg.JournalPath = b.TempDir() + "/journal"
			}
			s, err := New(invoices(), cfg)
			require.NoError(b, err)
			require.NoError(b, s.Start(b.Context()))
			b.Cleanup(func() { require.NoError(b, s.Stop(b.Context())) })
			addr := strings.TrimPrefix(s.URL(), "http://")
			const body = `{"customer":1,"number":777,"cents":500}`
			var n atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					b.Error(err)
					return
				}
				defer c.Close()
				in := bufio.NewReader(c)
				var out []byte
				for pb.Next() {
					out = fmt.Appendf(out[:0], "POST /v1/invoices HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: invoice:1:%d\r\nContent-Length: %d\r\n\r\n%s", n.Add(1), len(body), body)
					if _, err := c.Write(out); err != nil {
						b.Error(err)
						return
					}
					if err := readAnswer(in); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
			require.Equal(b, b.N, s.Summary().Executed+int(s.Summary().Requests["replayed"]))
		})
	}
}

// readAnswer reads one 200 with a Content-Length.
func readAnswer(in *bufio.Reader) error {
	length := 0
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		text := string(line)
		switch {
		case first && !strings.HasPrefix(text, "HTTP/1.1 200"):
			return fmt.Errorf("answer %q", text)
		case len(line) == 2:
			_, err := io.CopyN(io.Discard, in, int64(length))
			return err
		case strings.HasPrefix(text, "Content-Length: "):
			fmt.Sscan(text[16:], &length)
		}
	}
}
