package entry_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

func decodeMetadata(t testing.TB, metadata string) *message.Message {
	t.Helper()
	m, err := entry.Decode(goredis.XMessage{ID: "1-0", Values: map[string]any{redisstream.UUIDHeaderKey: "u", "payload": "p", "metadata": metadata}})
	require.NoError(t, err)
	require.Equal(t, "u", m.UUID)
	require.Equal(t, "p", string(m.Payload))
	return m
}

// The lengths of strings and maps have several forms.
func TestDecodeMetadataOfEachLength(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 31, 32, 255, 256, 65_535, 65_536} {
		for _, entries := range []int{1, 15, 16, 65_536} {
			if n*entries > 1<<20 {
				continue
			}
			in := message.NewMessage("u", []byte("p"))
			for i := range entries {
				in.Metadata.Set(fmt.Sprint(i), strings.Repeat("x", n))
			}
			raw, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal("topic", in)
			require.NoError(t, err)
			require.True(t, in.Equals(decodeMetadata(t, text(raw["metadata"]))), "%d of %d bytes", entries, n)
		}
	}
}

// Only this package marks what it can't decode; a producer can't.
func TestMetadataMarksNothingAsMalformed(t *testing.T) {
	t.Parallel()
	in := message.NewMessage("u", []byte("p"))
	in.Metadata = message.Metadata{pipeline.MetaMalformed: "yes", "own": "kept"}
	raw, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal("topic", in)
	require.NoError(t, err)
	require.Equal(t, message.Metadata{"own": "kept"}, decodeMetadata(t, text(raw["metadata"])).Metadata)
}

// hostile are metadata that say more than they have.
var hostile = []string{
	"\xdf\xff\xff\xff\xff", "\xde\xff\xff\xdb\xff\xff\xff\xff", "\x81\xdb\xff\xff\xff\xff", "\x81\xa1a\xdb\x7f\xff\xff\xff", "\x81\xa1a\xc6\xff\xff\xff\xff",
	"\xdd\xff\xff\xff\xff", "\x81\xa1a\xdd\xff\xff\xff\xff", "\xc9\xff\xff\xff\xff\x01", "\xc7\x01\x02", "\xde\xff", "\xdf\x00", "\x81", "\x81\xa1", "\x81\xa1a\xda\xff",
	strings.Repeat("\x81\xa1a", 1000), strings.Repeat("\x91", 10_000), "\x81\xa1a" + strings.Repeat("\x91", 10_000), "\xdf\xff\xff\xff\xff" + strings.Repeat("\xa0\xa0", 10_000),
}

// What an entry says about its lengths takes no memory. Beyond the message itself, an entry takes a
// small multiple of its size.
func TestHostileMetadataTakesNoMemory(t *testing.T) { //nolint:paralleltest // it counts what the process takes
	for _, metadata := range hostile {
		var before, after runtime.MemStats
		const rounds = 100
		runtime.ReadMemStats(&before)
		for range rounds {
			require.Contains(t, decodeMetadata(t, metadata).Metadata, entry.MetaRawHeaders)
		}
		runtime.ReadMemStats(&after)
		require.Less(t, (after.TotalAlloc-before.TotalAlloc)/rounds, uint64(16<<10+64*len(metadata)), "%.20q", metadata)
	}
}

// FuzzDecodeWatermillMetadata: metadata is decoded as the decoder of watermill-redisstream does. That
// one also skips the header of an extension in front of the map, which its marshaler never writes.
func FuzzDecodeWatermillMetadata(f *testing.F) {
	for _, metadata := range append(hostile, "", "\xc0", "\x80", "\x81\xa1a\xa11", "\x81\xa1a\xa11 and more", "\x82\xc0\xc4\x02\xff\x00\xa1a\xc0", "\xde\x00\x01\xd9\x01a\xda\x00\x01b", "\x81\xa1a\x01", "\xd4\x01\x81\xa1a\xa11") {
		f.Add(metadata)
	}
	f.Fuzz(func(t *testing.T, metadata string) {
		m := decodeMetadata(t, metadata)
		_, refused := m.Metadata[entry.MetaRawHeaders]
		want, err := theirs(metadata)
		switch {
		case err == nil && !refused:
			delete(want, pipeline.MetaMalformed)
			require.Equal(t, fmt.Sprint(want), fmt.Sprint(m.Metadata))
		case err == nil:
			_, given := want[entry.MetaRawHeaders]
			require.True(t, given || isExtension(metadata), "%q", metadata)
		default:
			require.True(t, refused)
		}
	})
}

// isExtension reports whether the text begins with the header of an extension.
func isExtension(text string) bool {
	return text != "" && (text[0] >= 0xc7 && text[0] <= 0xc9 || text[0] >= 0xd4 && text[0] <= 0xd8)
}

// theirs decodes metadata with watermill-redisstream.
func theirs(metadata string) (decoded message.Metadata, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	m, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(map[string]any{redisstream.UUIDHeaderKey: "u", "payload": "p", "metadata": metadata})
	if err != nil {
		return nil, err
	}
	return m.Metadata, nil
}
