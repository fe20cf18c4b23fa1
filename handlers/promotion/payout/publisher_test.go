package payout

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
)

// The entry of an accepted record has its headers and its key, and no metadata of the pipeline.
func TestPublisherAddsTheRecordsOwnHeaders(t *testing.T) {
	t.Parallel()
	rec := payouts.Record{
		Key:       payouts.Key{Type: "POINT", Promotion: 12345, Target: 777},
		Payload:   []byte("{}"),
		Headers:   map[string]string{"traceparent": "00-1-2-01", "campaign": "spring"},
		RecordKey: []byte("777"),
	}
	msg := streamMessage(rec)
	msg.Metadata.Set(pipeline.MetaAttempt, "1")
	key, err := payoutKey(msg.UUID)
	require.NoError(t, err)
	require.Equal(t, rec.Key, key)
	e := streamEntry(msg)
	require.Equal(t, rec.Headers, e.Headers)
	require.Equal(t, "777", e.Key)
	require.Equal(t, "POINT:12345:777", e.UUID)
	require.Equal(t, rec.Payload, e.Message)

	err = publisher{}.Publish(t.Context(), message.NewMessage("no payout", nil))
	require.True(t, pipeline.IsPermanent(err))
}
