package entry_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

func TestEntryValuesAreInTheOrderOfTheContract(t *testing.T) {
	t.Parallel()
	e := entry.Entry{Key: "777", UUID: "u", Message: []byte(`{"a":1}`), Headers: map[string]string{"b": "2", "a": "1"}}
	require.Equal(t, []any{"key", "777", "message", []byte(`{"a":1}`), "uuid", "u", "headers", `{"a":"1","b":"2"}`}, e.Values())
	require.Equal(t, []any{"key", "", "message", []byte{}, "uuid", "", "headers", "{}"}, entry.Entry{}.Values())
}

// onTheWire is what the server makes of Values: strings.
func onTheWire(values []any) map[string]any {
	out := map[string]any{}
	for i := 0; i+1 < len(values); i += 2 {
		out[fmt.Sprint(values[i])] = text(values[i+1])
	}
	return out
}

func text(v any) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(v)
}

func TestEntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := message.NewMessage(rapid.StringMatching(`[a-z0-9-]{1,20}`).Draw(t, "uuid"), rapid.SliceOf(rapid.Byte()).Draw(t, "payload"))
		for k, v := range rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata") {
			in.Metadata.Set(strings.ToValidUTF8(k, ""), strings.ToValidUTF8(v, ""))
		}
		if key := rapid.String().Draw(t, "key"); key != "" {
			in.Metadata.Set(pipeline.MetaKey, key)
		}
		out, err := entry.Decode(goredis.XMessage{ID: "1-0", Values: onTheWire(entry.New(in).Values())})
		require.NoError(t, err)
		require.Equal(t, in.UUID, out.UUID)
		require.Equal(t, string(in.Payload), string(out.Payload))
		require.Equal(t, in.Metadata, out.Metadata)
	})
}

// An origin that was stored as text gives its stream back, whatever the stream is called, and no
// other text is taken for one.
func TestOriginsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		stream := rapid.StringMatching(`[a-z0-9@/:._-]{1,20}`).Draw(t, "stream")
		origin := entry.Position(stream, fmt.Sprintf("%d-%d", rapid.Uint64().Draw(t, "time"), rapid.Uint64().Draw(t, "sequence")))
		got, ok := entry.ParseOrigin(origin)
		require.True(t, ok, origin)
		require.Equal(t, stream, got)
	})
	for _, text := range []string{
		"", "events", "events@17", "events@17-", "events@-0", "@17-0", "events/3@42", "events@x-0", "events@017-0", "events@17-00", "events@17-0-1",
		"events@17-0 ", "events@18446744073709551616-0",
	} {
		_, ok := entry.ParseOrigin(text)
		require.False(t, ok, text)
	}
}

func TestNextID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"5-0": "5-1", "5-18446744073709551615": "6-0", "18446744073709551615-1": "18446744073709551615-2",
		"18446744073709551615-18446744073709551615": "", "x-18446744073709551615": "", "5": "", "": "",
	} {
		next, ok := entry.NextID(id)
		require.Equal(t, want, next, id)
		require.Equal(t, want != "", ok, id)
	}
}

func TestDecodeEntry(t *testing.T) {
	t.Parallel()
	type values = map[string]any
	long := strings.Repeat("x", 100<<10)
	tests := []struct {
		name     string
		in       values
		uuid     string
		payload  string
		metadata message.Metadata
		class    string
	}{
		{name: "all fields", in: values{"key": "k", "message": "m", "uuid": "u", "headers": `{"a":"1"}`}, uuid: "u", payload: "m", metadata: message.Metadata{"a": "1", pipeline.MetaKey: "k"}},
		{name: "only a message, as redis-cli would write it", in: values{"message": "m"}, uuid: "9-1", payload: "m", metadata: message.Metadata{}},
		{name: "an empty message is a message", in: values{"message": ""}, uuid: "9-1", metadata: message.Metadata{}},
		{name: "headers that are no strings", in: values{"message": "m", "headers": `{"n":1,"o":{"p":true},"s":"x","z":null}`}, uuid: "9-1", payload: "m", metadata: message.Metadata{"n": "1", "o": `{"p":true}`, "s": "x", "z": ""}},
		{name: "headers that are no object", in: values{"message": "m", "headers": `[1]`}, uuid: "9-1", payload: "m", metadata: message.Metadata{entry.MetaRawHeaders: "[1]"}},
		{name: "headers that are no JSON", in: values{"message": "m", "headers": `{"a`}, uuid: "9-1", payload: "m", metadata: message.Metadata{entry.MetaRawHeaders: `{"a`}},
		{name: "a mark from the wire is not believed", in: values{"message": "m", "headers": `{"millrace-malformed":"x"}`}, uuid: "9-1", payload: "m", metadata: message.Metadata{}},
		{name: "no message field", in: values{"foo": "bar"}, uuid: "9-1", class: "missing_message", metadata: message.Metadata{pipeline.MetaMalformed: "missing_message", entry.MetaRawFields: `{"foo":"bar"}`}},
		{name: "no field at all", in: values{}, uuid: "9-1", class: "missing_message", metadata: message.Metadata{pipeline.MetaMalformed: "missing_message", entry.MetaRawFields: `{}`}},
		{name: "watermill without metadata", in: values{redisstream.UUIDHeaderKey: "u", "payload": "p", "metadata": ""}, uuid: "u", payload: "p", metadata: message.Metadata{}},
		{name: "watermill without payload", in: values{redisstream.UUIDHeaderKey: "u"}, uuid: "u", metadata: message.Metadata{}},
		{name: "watermill with broken metadata", in: values{redisstream.UUIDHeaderKey: "u", "payload": "p", "metadata": "\xdf\xff\xff\xff\xffzz"}, uuid: "u", payload: "p", metadata: message.Metadata{entry.MetaRawHeaders: "\uFFFDzz"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, err := entry.Decode(goredis.XMessage{ID: "9-1", Values: tt.in})
			require.Equal(t, tt.uuid, m.UUID)
			require.Equal(t, tt.payload, string(m.Payload))
			require.Equal(t, tt.metadata, m.Metadata)
			require.Equal(t, tt.class, pipeline.Class(err))
			require.Equal(t, err, entry.Malformed(m))
			if tt.class != "" {
				require.True(t, pipeline.IsPermanent(err))
			}
		})
	}
	t.Run("what is kept of a malformed entry is bounded", func(t *testing.T) {
		t.Parallel()
		m, err := entry.Decode(goredis.XMessage{ID: "9-1", Values: values{"foo": long}})
		require.Error(t, err)
		require.LessOrEqual(t, len(m.Metadata.Get(entry.MetaRawFields)), 64<<10)
	})
}

func TestDecodeEntryOfWatermillsOwnMarshaler(t *testing.T) {
	t.Parallel()
	in := message.NewMessage("u", []byte("p"))
	in.Metadata.Set("a", "1")
	in.Metadata.Set(pipeline.MetaKey, "777")
	raw, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal("topic", in)
	require.NoError(t, err)
	values := map[string]any{}
	for k, v := range raw {
		values[k] = text(v)
	}
	out, err := entry.Decode(goredis.XMessage{ID: "1-0", Values: values})
	require.NoError(t, err)
	require.True(t, in.Equals(out))
}

func FuzzDecodeEntry(f *testing.F) {
	f.Add("message", "m", "headers", `{"a":"1"}`, "uuid", "u")
	f.Add(redisstream.UUIDHeaderKey, "u", "payload", "p", "metadata", "\x81\xa1a\xa11")
	f.Add(redisstream.UUIDHeaderKey, "u", "payload", "p", "metadata", "\xdf\xff\xff\xff\xff")
	f.Add("foo", "bar", "", "", "headers", "{}")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, k3, v3 string) {
		values := map[string]any{k1: v1, k2: v2, k3: v3}
		m, err := entry.Decode(goredis.XMessage{ID: "1-0", Values: values})
		require.NotNil(t, m)
		require.NotNil(t, m.Metadata)
		require.NotEmpty(t, m.UUID)
		require.Equal(t, err != nil, entry.Malformed(m) != nil, "mark and error must say the same")
		if err != nil {
			require.Empty(t, m.Payload)
		}
		// Whatever came in can be written again, and is the same then.
		again, err2 := entry.Decode(goredis.XMessage{ID: "1-0", Values: onTheWire(entry.New(m).Values())})
		require.NoError(t, err2)
		require.Equal(t, string(m.Payload), string(again.Payload))
		_, jsonErr := json.Marshal(m.Metadata)
		require.NoError(t, jsonErr)
	})
}
