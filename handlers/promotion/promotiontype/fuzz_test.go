package promotiontype

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// FuzzStarted: a decoded started event is valid, and every error is permanent.
func FuzzStarted(f *testing.F) {
	for _, s := range []string{`{"promotionId":12345,"promotionType":"POINT","totalCount":1000000}`, `{"promotionId":1,"totalCount":-1}`, `{"promotionId":1e3}`, `[]`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var m Started
		if err := pipeline.Decode(payload, &m); err != nil {
			require.True(t, pipeline.IsPermanent(err))
			require.Contains(t, []string{pipeline.ClassUndecodable, pipeline.ClassInvalid}, pipeline.Class(err))
			return
		}
		require.Positive(t, m.PromotionID)
		require.GreaterOrEqual(t, m.TotalCount, int64(0))
		text, err := json.Marshal(m)
		require.NoError(t, err)
		var again Started
		require.NoError(t, pipeline.Decode(text, &again))
		require.Equal(t, m, again)
	})
}

// FuzzRetryRecord: a retry record makes the same request as its record, for every count.
func FuzzRetryRecord(f *testing.F) {
	for _, r := range records {
		if len(r.payload) < 1000 {
			f.Add([]byte(r.payload), 1)
		}
	}
	f.Add([]byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5,"RETRYCOUNT":3,"retrycount":9}`), 9)
	f.Add([]byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5,"Amount":6,"TARGETID":8}`), -3)
	f.Fuzz(func(t *testing.T, payload []byte, n int) {
		retried, err := WithRetryCount(payload, n)
		for _, s := range All() {
			fresh, bad := s.Decode(payload)
			if bad != nil || len(retried) > MaxPayloadBytes {
				continue
			}
			require.NoError(t, err)
			again, err := s.Decode(retried)
			require.NoError(t, err, "%s", retried)
			require.Equal(t, fresh, again)
		}
	})
}

// FuzzUnambiguous: a decoded payload has each field once, under its exact name. Every decoder then
// reads the same payout.
func FuzzUnambiguous(f *testing.F) {
	for _, s := range []string{
		`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500}`,
		`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500,"Amount":1}`,
		`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":500,"amount":1}`,
		`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"AMOUNT":500}`,
		`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V","vouchErId":"W"}`,
		"{\"promotionId\":1,\"promotionSummaryId\":9,\"targetId\":7,\"voucherId\":\"V\xff\"}",
		`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, s := range All() {
			p, err := s.Decode(payload)
			if err != nil {
				require.True(t, pipeline.IsPermanent(err))
				continue
			}
			// A decoder that keeps names apart by case, and one that takes the first of two.
			var fields map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(payload, &fields))
			for _, name := range []string{"promotionId", "promotionSummaryId", "targetId"} {
				require.Contains(t, fields, name)
			}
			exact, err := json.Marshal(fields)
			require.NoError(t, err)
			again, err := s.Decode(exact)
			require.NoError(t, err)
			require.Equal(t, p, again)
			require.NotContains(t, string(p.Request), "\uFFFD")
			// The decoder of the standard library reads the same payout.
			r := s.newRecord()
			require.NoError(t, json.Unmarshal(payload, r))
			r.common().RetryCount = 0
			request, err := json.Marshal(r)
			require.NoError(t, err)
			require.Equal(t, string(request), string(p.Request))
		}
	})
}
