package entry_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/entry"
)

func TestDecodeFlatFields(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct {
		in      map[string]any
		uuid    string
		payload string
	}{
		"flat, in the order of names": {map[string]any{"seq": "1", "job_id": "j", "data": `{"a":"b"}`}, "9-1", `{"data":"{\"a\":\"b\"}","job_id":"j","seq":"1"}`},
		"key and uuid are fields too": {map[string]any{"uuid": "u", "key": "k"}, "9-1", `{"key":"k","uuid":"u"}`},
		"control characters":          {map[string]any{"a\n": "\x00\t\\/"}, "9-1", `{"a\u000a":"\u0000\u0009\\/"}`},
		"text of other languages":     {map[string]any{"é": "한국\u2028\U0001F600\uFFFD"}, "9-1", "{\"é\":\"한국\u2028\U0001F600\uFFFD\"}"},
		"bytes that are not UTF-8":    {map[string]any{"status": "caf\xe9", "cut": "\xed\x95", "surrogate": "\xed\xb3\xbf"}, "9-1", `{"cut":"\udced\udc95","status":"caf\udce9","surrogate":"\udced\udcb3\udcbf"}`},
		"no field at all":             {map[string]any{}, "9-1", `{}`},
		"a message, as before":        {map[string]any{"message": "m", "uuid": "u", "seq": "1"}, "u", "m"},
		"watermill, as before":        {map[string]any{redisstream.UUIDHeaderKey: "u", "payload": "p"}, "u", "p"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			m, err := entry.DecodeFields(goredis.XMessage{ID: "9-1", Values: tt.in})
			require.NoError(t, err)
			require.Equal(t, tt.uuid, m.UUID)
			require.Equal(t, tt.payload, string(m.Payload))
			require.Empty(t, m.Metadata)
		})
	}
}

// A dead letter of a flat entry is replayed into its stream as a message with the same payload.
func TestAReplayedFlatEntryHasTheSamePayload(t *testing.T) {
	t.Parallel()
	m, err := entry.DecodeFields(goredis.XMessage{ID: "9-1", Values: map[string]any{"job_id": "j", "status": "\xff"}})
	require.NoError(t, err)
	again, err := entry.DecodeFields(goredis.XMessage{ID: "9-2", Values: onTheWire(entry.New(m).Values())})
	require.NoError(t, err)
	require.Equal(t, m.Payload, again.Payload)
	require.Equal(t, "9-1", again.UUID)
}

// original returns the bytes of a field. text is the content of its JSON string.
func original(t *testing.T, text string) string {
	t.Helper()
	var b []byte
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			b = append(b, text[i])
			continue
		}
		i++
		if text[i] != 'u' {
			b = append(b, text[i])
			continue
		}
		n, err := strconv.ParseUint(text[i+1:i+5], 16, 16)
		require.NoError(t, err)
		require.Contains(t, []uint64{0, 0xdc}, n>>8, "a control character, or a byte that is not UTF-8")
		b = append(b, byte(n))
		i += 4
	}
	return string(b)
}

// Any fields become valid JSON in a fixed order, from which all their bytes can be read again.
func FuzzDecodeFlatFields(f *testing.F) {
	f.Add("job_id", "j", "seq", "1", "data", `{"a":"\udcff"}`)
	f.Add("a", "\xff\xfe", "b", "\xed\xb3\xbf", "c", "\\\xe9\"")
	f.Add("message", "m", "uuid", "u", "headers", "{}")
	f.Add("\xff", "", "\xfe", "", "", "\x7f\x00")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, k3, v3 string) {
		values := map[string]any{k1: v1, k2: v2, k3: v3}
		m, err := entry.DecodeFields(goredis.XMessage{ID: "1-0", Values: values})
		require.NoError(t, err)
		_, ours := values["message"]
		_, foreign := values[redisstream.UUIDHeaderKey]
		if ours || foreign {
			return
		}
		require.True(t, json.Valid(m.Payload), "%q", m.Payload)
		rest := strings.TrimSuffix(strings.TrimPrefix(string(m.Payload), "{"), "}")
		for i, name := range slices.Sorted(maps.Keys(values)) {
			if i > 0 {
				rest = rest[1:]
			}
			for _, want := range []string{name, values[name].(string)} {
				text := stringOf(rest)
				require.Equal(t, want, original(t, text))
				rest = strings.TrimPrefix(rest[len(text)+2:], ":")
			}
		}
		require.Empty(t, rest)
	})
}

// stringOf returns the content of the JSON string at the beginning of s.
func stringOf(s string) string {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[1:i]
		}
	}
	return ""
}
