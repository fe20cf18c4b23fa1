package deadletter

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
)

// FuzzLetter: a dead letter is read back from its headers as it was written, whatever its texts
// are.
func FuzzLetter(f *testing.F) {
	f.Add("own", "header", "777", "failed", "422: no", "toy.take", "orders/3@7", "kafka", "orders", 3, int64(1), int64(2))
	f.Add("millrace-due", "", "", "", "", "", "s@1-0", "", "s", 0, int64(-1), int64(0))
	f.Add(pipeline.MetaDeadPayloadBytes, "9000", "", "", "", "h", "o", "", "", 1, int64(1), int64(2))
	f.Add(pipeline.MetaDeadSource, "other", "", "", "", "h", "o", "", "", 1, int64(1), int64(2))
	f.Add("traceparent", "00-1", "\xff", "\n", "a@b/c", "x", "a/b/9999999999@1@2", "\xff", "", -1, int64(1)<<40, int64(5))
	f.Fuzz(func(t *testing.T, name, value, key, class, text, handler, origin, kind, source string, attempts int, first, failed int64) {
		if name == pipeline.MetaKey {
			t.Skip("a header of the letter's own")
		}
		d := pipeline.DeadLetter{
			Payload: []byte("p"), Metadata: map[string]string{name: value}, UUID: "u", Key: key, Class: class, Error: text, Handler: handler, SourceKind: kind, Source: source, Origin: origin,
			Attempts: attempts, FirstFailedAt: time.Unix(first%1e10, 5).UTC(), FailedAt: time.Unix(failed%1e10, 0).UTC(),
		}
		if source == "" {
			d.SourceKind = "" // it is of no use without a name
		}
		entry := Entry{Topic: "t", DeadLetter: d}
		entry.UUID = "u"
		row := entry.row(store.PluginOf(handler))
		require.Equal(t, strings.HasPrefix(name, pipeline.MetaDeadPrefix), len(row.Headers) == 0, "a sender writes none of the letter's own")
		require.Equal(t, row, fromMessage("t", d.Message()))
		if origin != "" {
			require.Equal(t, origin, store.From("", "", "t", "u", d).Source.String(), "the position is unchanged")
		}
	})
}

// FuzzForeignLetter: a record of any client in a dead-letter topic is a letter.
func FuzzForeignLetter(f *testing.F) {
	f.Add(pipeline.MetaDeadAttempts, "many", pipeline.MetaDeadFailedAt, "yesterday", []byte("p"))
	f.Add(pipeline.MetaDeadOrigin, "@", pipeline.MetaDeadUUID, "", []byte{})
	f.Add(pipeline.MetaDeadPayloadBytes, "9000", pipeline.MetaDeadPayloadSHA256, "0f", []byte("p"))
	f.Add(pipeline.MetaDeadPrefix, "", pipeline.MetaDeadPayloadBytes+"-", "", []byte("p"))
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string, payload []byte) {
		m := message.NewMessage("m", payload)
		m.Metadata.Set(name1, value1)
		m.Metadata.Set(name2, value2)
		l := fromMessage("t", m)
		require.NotEmpty(t, l.ID)
		require.Equal(t, string(payload), string(l.Payload))
		for name := range l.Headers {
			if name != pipeline.MetaDeadPayloadBytes && name != pipeline.MetaDeadPayloadSHA256 { // those of a cut letter
				require.False(t, strings.HasPrefix(name, pipeline.MetaDeadPrefix), name)
			}
		}
		require.Equal(t, l, fromMessage("t", m), "and the same one whenever it is read")
	})
}
