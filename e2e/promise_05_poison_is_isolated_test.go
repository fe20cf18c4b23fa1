package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Bad records become dead letters. The records before and after them on the same partition are
// paid.
func TestPoisonIsIsolated(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, "redis", simulator.Faults{})
	in := w.start()
	w.send("campaign-promotion-point-publish",
		point(w.promotion, 1, "100"),
		`{"promotionId":`,
		point(w.promotion, 2, "-5"),
		point(w.promotion, 3, "0.5"),
		`{"promotionId":1,"x":"`+strings.Repeat("x", 1<<20)+`"}`,
		point(w.promotion, 1, "100"), // a duplicate
		point(w.promotion, 1, "999"), // the same target, another amount: the first wins
		point(w.promotion, 4, "400"))
	w.awaitSettled("POINT", 2, time.Minute)
	require.Equal(t, map[string]int{"undecodable": 3, "too_large": 1, "conflict": 1}, w.deadLetters("campaign-promotion-point-dead", 5))
	w.send("campaign-promotion-started",
		`{"promotionId":1,"promotionType":"CASH","totalCount":5}`,
		`not JSON`,
		fmt.Sprintf(`{"promotionId":%d,"promotionType":"POINT","totalCount":0}`, w.promotion),
		fmt.Sprintf(`{"promotionId":%d,"promotionType":"POINT","totalCount":99999999}`, w.promotion))
	require.Equal(t, map[string]int{"undecodable": 1, "unknown_type": 1}, w.deadLetters("campaign-promotion-started-dead", 2))

	// A retry record and stream entries: without an accepted record, on another promotion's stream,
	// without a message, and without JSON.
	w.send("campaign-promotion-point-retry", point(w.promotion, 6, "600"))
	for _, fields := range []any{
		[]string{"message", point(w.promotion, 5, "500")},
		[]string{"message", point(w.promotion, 5, "500")}, // the same again
		[]string{"message", point(w.promotion+1, 5, "500")},
		[]string{"key", "5"},
		[]string{"key", "5", "message", "not JSON"},
	} {
		require.NoError(t, w.redis.XAdd(t.Context(), &redis.XAddArgs{Stream: w.stream("POINT"), NoMkStream: true, Values: fields}).Err())
	}
	require.Equal(t, map[string]int{"undecodable": 4, "too_large": 1, "conflict": 1, "missing_message": 1, "unannounced": 2, "wrong_stream": 1},
		w.deadLetters("campaign-promotion-point-dead", 10))
	w.assertBalanced("POINT", 2)
	require.Equal(t, 2, w.api.Summary().Executed, "nothing of another promotion either")
	c := w.counts("POINT")
	require.EqualValues(t, 1, c.Conflict)
	require.False(t, in.ended())
}
