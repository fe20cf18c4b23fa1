package streams

import (
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Each instance measures what is in all streams that it reads, also while nothing is handled.
func TestTheEntriesOfAllStreamsAreMeasured(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		active := newActiveSet("1", "2")
		release := make(chan struct{})
		open := func(name string) *instance {
			in := newInstance(t, s, name, active, quick())
			in.open(t, pipeline.Flow{}, func(*message.Message) error { <-release; return nil })
			return in
		}
		a, b := open("a"), open("b")
		free := sync.OnceFunc(func() { close(release) })
		defer free()
		measured := func(in *instance) float64 {
			return testutil.ToFloat64(in.opts.Metrics.entries.WithLabelValues(in.opts.Kind.Type))
		}
		for id, n := range map[string]int{"1": 30, "2": 50} {
			require.NoError(t, a.Ensure(t.Context(), id))
			added, _, err := a.EnqueueBatch(t.Context(), id, entries(0, n))
			require.NoError(t, err)
			require.Equal(t, n, added)
		}
		redistest.Eventually(t, "both know all entries", func() bool { return measured(a) == 80 && measured(b) == 80 })
		free()
		redistest.Eventually(t, "all are handled", func() bool { return measured(a) == 0 && measured(b) == 0 })
	})
}
