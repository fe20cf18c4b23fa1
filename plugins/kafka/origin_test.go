package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// An origin that was stored as text gives its topic back, whatever the topic is called, and no other
// text is taken for one.
func TestOriginsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		topic := rapid.StringMatching(`[a-z0-9@/:._-]{1,20}`).Draw(t, "topic")
		origin := position(topic, rapid.Int32Min(0).Draw(t, "partition"), rapid.Int64Min(0).Draw(t, "offset"))
		got, ok := ParseOrigin(origin)
		require.True(t, ok, origin)
		require.Equal(t, topic, got)

		stream := entry.Position(topic, rapid.StringMatching(`[1-9][0-9]{0,18}-(0|[1-9][0-9]{0,18})`).Draw(t, "id"))
		_, ok = ParseOrigin(stream)
		require.False(t, ok, stream)
	})
	for _, text := range []string{
		"", "orders", "orders@42", "orders/3", "orders/x@42", "orders/3@", "/3@42", "orders/03@42", "orders/3@042", "orders/-3@42",
		"orders/3@-42", "orders/+3@42", "orders/3@42 ", "orders/2147483648@42", "orders/3@9223372036854775808",
	} {
		_, ok := ParseOrigin(text)
		require.False(t, ok, text)
	}
}
