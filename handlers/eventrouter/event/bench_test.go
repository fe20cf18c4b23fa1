package event_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// BenchmarkParse parses the fields of an entry, and encodes the event for the log.
func BenchmarkParse(b *testing.B) {
	payload := fmt.Appendf(nil, `{"job_id":"job-1","stage":"scan","status":"running","seq":"17","data":"{\"text\":\"%s\"}"}`, strings.Repeat("x", 200))
	origin := pipeline.Origin{Source: "scan:events:1", Position: "scan:events:1@1763900000000-0"}
	stages := event.DefaultStages()
	pipelinetest.ReportCPU(b, 1, func() {
		e, err := stages.Parse(payload, origin)
		if err == nil {
			_, err = e.JSON()
		}
		require.NoError(b, err)
	})
}
