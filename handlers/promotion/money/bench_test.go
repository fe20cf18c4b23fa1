package money_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
)

// BenchmarkCharge has 64 calls in flight, over loopback, all in one process. "bare" answers with
// fixed bytes and so shows the client alone; the others are the whole simulator.
func BenchmarkCharge(b *testing.B) {
	run := func(b *testing.B, url string) {
		c := newClient(b, url, nil)
		var n atomic.Int64
		body := []byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":777,"amount":500}`)
		b.ReportAllocs()
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				key := fmt.Sprintf("POINT:1:%d", n.Add(1))
				if a := c.Charge(b.Context(), money.Charge{Operation: chargePoint, Key: key, Body: body}); a.Class != money.Paid {
					b.Errorf("unexpected answer %+v", a)
					return
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	}
	b.Run("bare", func(b *testing.B) { run(b, "http://"+bareServer(b)) })
	for _, home := range []string{"memory", "file"} {
		b.Run(home, func(b *testing.B) {
			cfg := simulator.Config{}
			if home == "file" {
				cfg.JournalPath = b.TempDir() + "/book"
			}
			sim, err := simulator.New(cfg)
			require.NoError(b, err)
			require.NoError(b, sim.Start(b.Context()))
			b.Cleanup(func() { require.NoError(b, sim.Stop(b.Context())) })
			run(b, sim.URL())
		})
	}
}

// bareServer answers every POST in the cheapest way there is.
func bareServer(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	b.Cleanup(func() { l.Close() })
	const answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 24\r\n\r\n{\"transactionKey\":\"t-1\"}"
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					length := 0
					for {
						line, err := in.ReadSlice('\n')
						if err != nil {
							return
						}
						if len(line) == 2 {
							break
						}
						if strings.HasPrefix(string(line), "Content-Length: ") {
							fmt.Sscan(string(line[16:]), &length)
						}
					}
					if _, err := in.Discard(length); err != nil {
						return
					}
					if _, err := io.WriteString(c, answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}
