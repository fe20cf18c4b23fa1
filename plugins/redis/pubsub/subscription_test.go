package pubsub_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/pubsub"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A subscription that ends in order leaves no mark. One that claims nothing has none.
func TestASubscriptionIsMarkedUntilItIsClosed(t *testing.T) {
	for _, test := range []struct {
		name, group string
		interval    time.Duration
		want        []string // marks; %s is the stream
	}{
		{"group", "g", 0, []string{"shared\t%s\tg\tme-0"}},
		{"own group", "", 0, []string{"own\t%s\town-me-0\tme-0"}},
		{"claims nothing", "", -1, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
				stream := redistest.Stream(t, c)
				require.NoError(t, c.XGroupCreateMkStream(t.Context(), stream, "g", "0").Err())
				marks := func() (own []string) {
					for _, mark := range c.HKeys(context.Background(), "millrace:subscriptions").Val() {
						if strings.Contains(mark, stream) {
							own = append(own, mark)
						}
					}
					return own
				}
				sub, err := pubsub.NewSubscriber(c, pubsub.SubscriberConfig{Group: test.group, Consumer: "me", ReclaimInterval: test.interval})
				require.NoError(t, err)
				_, err = sub.Subscribe(t.Context(), stream)
				require.NoError(t, err)
				redistest.Eventually(t, "the marks are written", func() bool { return len(marks()) == len(test.want) })
				for _, mark := range test.want {
					require.Contains(t, marks(), fmt.Sprintf(mark, stream))
				}
				require.NoError(t, sub.Close())
				require.Empty(t, marks())
				groups, err := c.XInfoGroups(t.Context(), stream).Result()
				require.NoError(t, err)
				require.Len(t, groups, 1, "the own group is removed")
			})
		})
	}
}
