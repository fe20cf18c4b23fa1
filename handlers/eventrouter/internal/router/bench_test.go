package router_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// BenchmarkHandle handles batches of events of 1,000 jobs in turn, from the message to the feed.
func BenchmarkHandle(b *testing.B) {
	for _, size := range []int{1, 10, 100} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			const jobs = 1000
			r := newRig(b, redistest.Real(b, "redis"))
			data := strings.Repeat("x", 200)
			n := 0
			pipelinetest.ReportCPU(b, size, func() {
				batch := make([]*message.Message, size)
				for i := range batch {
					batch[i] = r.message(fmt.Sprintf(`{"job_id":"job-%d","stage":"scan","status":"running","seq":"%d","data":"{\"text\":\"%s\"}"}`, n%jobs, n/jobs+1, data))
					n++
				}
				for _, class := range r.handle(batch...) {
					if class != "" {
						b.Fatal(class)
					}
				}
			})
		})
	}
}
