package redis_test

import (
	"testing"
	"time"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

const (
	group    = redistest.Group
	patience = redistest.Patience
	tick     = 5 * time.Millisecond
)
