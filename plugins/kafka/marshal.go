package kafka

import (
	"bytes"
	"maps"

	"github.com/IBM/sarama"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// marshaler is watermill-kafka's wire format with the record key in pipeline.MetaKey. The uuid is
// in a header of its own, every metadata entry is a header, and the payload is unchanged. Unmarshal
// never fails: the handler decides what is wrong with a record.
type marshaler struct{}

// Marshal makes the record of m. The key is not repeated as a header.
func (marshaler) Marshal(topic string, m *message.Message) (*sarama.ProducerMessage, error) {
	key, hasKey := m.Metadata[pipeline.MetaKey]
	_, reserved := m.Metadata[wkafka.UUIDHeaderKey]
	if hasKey || reserved {
		plain := message.NewMessage(m.UUID, m.Payload)
		for k, v := range m.Metadata {
			if k != pipeline.MetaKey && k != wkafka.UUIDHeaderKey {
				plain.Metadata[k] = v
			}
		}
		m = plain
	}
	record, err := wkafka.DefaultMarshaler{}.Marshal(topic, m)
	if err != nil {
		return nil, err
	}
	if key != "" {
		record.Key = sarama.StringEncoder(key)
	}
	return record, nil
}

// Unmarshal is unmarshal in the shape of Watermill's interface; the error is always nil.
func (marshaler) Unmarshal(r *sarama.ConsumerMessage) (*message.Message, error) {
	return copyOf(unmarshal(r)), nil
}

// unmarshal makes the message of a record, to be copied for each delivery (copyOf). It copies
// everything, because a record shares its memory with the response it came in. A record without
// Watermill's uuid is named after its place.
func unmarshal(r *sarama.ConsumerMessage) *message.Message {
	var uuid string
	var meta message.Metadata
	if len(r.Headers)+len(r.Key) > 0 {
		meta = make(message.Metadata, len(r.Headers)+1)
	}
	for _, h := range r.Headers {
		if h == nil {
			continue
		}
		if string(h.Key) == wkafka.UUIDHeaderKey {
			uuid = string(h.Value)
			continue
		}
		meta[string(h.Key)] = string(h.Value)
	}
	// The record's key overrides a header of that name.
	delete(meta, pipeline.MetaKey)
	if len(r.Key) > 0 {
		meta[pipeline.MetaKey] = string(r.Key)
	}
	if uuid == "" {
		uuid = position(r.Topic, r.Partition, r.Offset)
	}
	return &message.Message{UUID: uuid, Metadata: meta, Payload: bytes.Clone(r.Value)}
}

// copyOf returns a message that can be delivered, with the payload of m and its own metadata.
func copyOf(m *message.Message) *message.Message {
	c := message.NewMessage(m.UUID, m.Payload)
	maps.Copy(c.Metadata, m.Metadata)
	return c
}

var _ wkafka.MarshalerUnmarshaler = marshaler{}
