package deadletter_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
)

// capped notes the limits of the streams that Redis is asked for.
type capped struct {
	*redis.Plugin
	asked *[]string
}

func (c capped) CappedSink(stream string, atMost, atMostBytes int) pipeline.Sink {
	*c.asked = append(*c.asked, fmt.Sprintf("%s: %d entries, %d MiB", stream, atMost, atMostBytes>>20))
	return c.Plugin.CappedSink(stream, atMost, atMostBytes)
}

// Whoever sends the messages chooses the size of their dead letters. A stream of them is therefore limited
// by bytes, too, which the test of redis.CappedSink proves for any limit.
func TestAStreamOfDeadLettersIsLimitedByNumberAndBytes(t *testing.T) {
	t.Parallel()
	var asked []string
	d := deadletter.New(kafka.New(), capped{redis.New(), &asked})
	require.Equal(t, "jobs-dead", d.StreamSink("jobs-dead").Describe().Name)
	require.Equal(t, []string{"jobs-dead: 100000 entries, 64 MiB"}, asked)
}
