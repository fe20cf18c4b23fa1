package promotion

import (
	"reflect"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
)

// The readers of elastic streams check the presence before they start an entry.
func TestTheStreamsCheckThePresence(t *testing.T) {
	t.Parallel()
	k, shared := kafka.New(), redis.New()
	p := New(k, shared, deadletter.New(k, shared))
	name := func(fence any) string { return runtime.FuncForPC(reflect.ValueOf(fence).Pointer()).Name() }
	for _, s := range promotiontype.All() {
		fence := p.streamOptions(s).Fence
		require.NotNil(t, fence)
		require.Equal(t, name(shared.Fence), name(fence))
	}
}
