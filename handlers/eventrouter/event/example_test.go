package event_test

import (
	"fmt"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/pipeline"
)

func Example() {
	payload := []byte(`{"job_id":"job-1","stage":"ocr","seq":"4","data":"{\"page\":1}"}`)
	e, err := event.DefaultStages().Parse(payload, pipeline.Origin{Source: "scan:events:2", Position: "scan:events:2@1700000000000-0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(e.Domain, e.JobID, e.Stage, e.Seq, string(e.Data), e.StreamID)
	fmt.Println("shard", event.Shard(e.JobID, 4), "of 4")

	_, err = event.DefaultStages().Parse([]byte(`{"job_id":"job-1","stage":"ocr"}`), pipeline.Origin{})
	fmt.Println(pipeline.Class(err))
	// Output:
	// scan job-1 ocr 4 {"page":1} 1700000000000-0
	// shard 2 of 4
	// bad_seq
}
