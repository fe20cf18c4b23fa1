package pubsub_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) {
	redistest.VerifyTestMain(m,
		// Watermill's suite reads through a multiplier whose pumps wait forever on messages nobody takes.
		goleak.IgnoreTopFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func2"),
	)
}
