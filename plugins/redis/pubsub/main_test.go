package pubsub_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) {
	redistest.VerifyTestMain(m,
		// Watermill's suite has pumps that wait forever on messages that are not received.
		goleak.IgnoreTopFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func2"),
	)
}
