package entry_test

import (
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// Any client can write a message into a stream with XADD.
func ExampleDecode() {
	m, err := entry.Decode(goredis.XMessage{ID: "1-0", Values: map[string]any{"key": "777", "message": `{"n":1}`}})
	fmt.Println(string(m.Payload), m.Metadata.Get(pipeline.MetaKey), m.UUID, err)
	m, err = entry.Decode(goredis.XMessage{ID: "2-0", Values: map[string]any{"foo": "bar"}})
	fmt.Println(pipeline.Class(err), pipeline.IsPermanent(entry.Malformed(m)))
	// Output:
	// {"n":1} 777 1-0 <nil>
	// missing_message true
}
