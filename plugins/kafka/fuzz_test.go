package kafka

import (
	"testing"

	"github.com/IBM/sarama"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// FuzzRecord: any record becomes a message that has all of its content and shares no memory with
// it. Published and read again, it is the same.
func FuzzRecord(f *testing.F) {
	f.Add([]byte("777"), []byte(`{"promotionId":1}`), "traceparent", "00-1-2-01", wkafka.UUIDHeaderKey, "u-1")
	f.Add([]byte{}, []byte{}, pipeline.MetaKey, "not the key", "", "")
	f.Add([]byte("\xff\x00"), []byte("\x00"), pipeline.MetaDue, "2026-01-02T03:04:05Z", "a", "\xff")
	f.Add([]byte("k"), []byte("v"), "a", "1", "a", "2")
	f.Fuzz(func(t *testing.T, key, value []byte, name1, value1, name2, value2 string) {
		headers := []*sarama.RecordHeader{{Key: []byte(name1), Value: []byte(value1)}, nil, {Key: []byte(name2), Value: []byte(value2)}}
		wantKey, wantValue := string(key), string(value)
		m := unmarshal(&sarama.ConsumerMessage{Topic: "t", Partition: 3, Offset: 7, Key: key, Value: value, Headers: headers})
		for _, b := range [][]byte{key, value, headers[0].Key, headers[0].Value} {
			clear(b)
		}
		require.NotEmpty(t, m.UUID)
		require.Equal(t, wantKey, m.Metadata.Get(pipeline.MetaKey))
		require.Equal(t, wantValue, string(m.Payload))
		if name2 != wkafka.UUIDHeaderKey && name2 != pipeline.MetaKey {
			require.Equal(t, value2, m.Metadata.Get(name2), "the last header of a name counts")
		}

		out, err := marshaler{}.Marshal("t", m)
		require.NoError(t, err)
		again := &sarama.ConsumerMessage{Topic: "t", Partition: 3, Offset: 7}
		if out.Key != nil {
			again.Key, err = out.Key.Encode()
			require.NoError(t, err)
		}
		again.Value, err = out.Value.Encode()
		require.NoError(t, err)
		for i := range out.Headers {
			again.Headers = append(again.Headers, &out.Headers[i])
		}
		require.True(t, m.Equals(unmarshal(again)), "%v", m.Metadata)
	})
}
