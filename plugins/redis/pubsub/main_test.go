package pubsub_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) {
	redistest.VerifyTestMain(m,
		// The suite's TestConcurrentSubscribe stops reading when it has every message once. A pump that
		// holds a redelivered one then waits forever, and so does the goroutine that waits for the pumps.
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func2"),
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func3"),
	)
}
