package redis

import (
	"context"
	"fmt"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The streams of a family are on all nodes of a Cluster. A node that does not answer delays no
// stream of another one, and no new one.
func TestAFamilyInACluster(t *testing.T) {
	t.Parallel()
	answers, silent := redistest.Mini(t), redistest.Mini(t)
	proxy := redistest.NewProxy(t, silent.Addr)
	t.Cleanup(func() { proxy.SetDown(true) })
	c := halves(t, answers.Addr, proxy.Addr(), 2*time.Second)
	p, _, _ := trims(t, answers.Client(t), nil)
	var ours, theirs []string // per node
	for i := 0; len(ours) < 3 || len(theirs) < 3; i++ {
		if stream := fmt.Sprint("ENTRY:{", i, "}"); onNode(t, c, stream, answers.Addr) {
			ours = append(ours, stream)
		} else {
			theirs = append(theirs, stream)
		}
	}
	list := append(ours[:2:2], theirs[:2]...)
	lists := make(chan []string, 1)
	f := p.Family(FamilyOptions{Name: "ENTRY:{<id>}", Group: "g", Server: serverOf(c), ListInterval: 5 * time.Millisecond,
		List: func(context.Context) ([]string, error) {
			select {
			case list = <-lists:
			default:
			}
			return list, nil
		},
	})
	sub, err := f.Source().Open(t.Context(), pipeline.Flow{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close() }) // the silent node still has a read
	out, err := sub.Subscribe(t.Context(), "")
	require.NoError(t, err)
	add := func(stream string) {
		require.NoError(t, c.XAdd(t.Context(), &goredis.XAddArgs{Stream: stream, Values: []any{"message", stream}}).Err())
	}
	receive := func(streams ...string) {
		for range streams {
			require.Contains(t, streams, string(redistest.ReceiveAck(t, out).Payload))
		}
	}
	for _, stream := range list {
		add(stream)
	}
	receive(list...)
	redistest.Eventually(t, "all are read", func() bool { return len(f.Reading()) == 4 })

	proxy.Mute()
	proxy.Cut()
	add(ours[0])
	receive(ours[0])
	lists <- append(list[:4:4], ours[2], theirs[2])
	add(ours[2])
	receive(ours[2])
}
