package gateway

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// BenchmarkFeed takes entries of a feed, and waits until 100 clients have received an event: those
// of 100 jobs, or of one job. The clients are in the same process.
func BenchmarkFeed(b *testing.B) {
	const clients = 100
	for _, jobs := range []int{clients, 1} {
		b.Run(fmt.Sprint(jobs), func(b *testing.B) {
			r := newRedis(b, redistest.Real(b, "redis"))
			p := r.start("", nil)
			received := make(chan struct{}, clients)
			for i := range clients {
				p.count(fmt.Sprint("job-", i%jobs), received)
			}
			data := fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", 200))
			n := int64(0)
			pipelinetest.ReportCPU(b, clients, func() {
				n++
				texts := make([]string, jobs)
				for i := range texts {
					e := r.event(fmt.Sprint("job-", i), n, "step")
					e.Data = data
					text, err := e.JSON()
					require.NoError(b, err)
					texts[i] = string(text)
				}
				p.domain(r.domain).entries(texts)
				for range clients {
					<-received
				}
			})
		})
	}
}

// count opens the stream of a job. Each numbered event is received.
func (p *process) count(id string, received chan<- struct{}) {
	p.t.Helper()
	domain := p.domains[0]
	before := p.attached(domain.name, id)
	resp, err := http.Get(p.url + "/jobs/" + domain.name + "/" + id + "/events")
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = resp.Body.Close() })
	require.Equal(p.t, http.StatusOK, resp.StatusCode)
	go func() {
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "id: ") {
				received <- struct{}{}
			}
		}
	}()
	redistest.Eventually(p.t, "the client is attached", func() bool { return p.attached(domain.name, id) == before+1 })
}
