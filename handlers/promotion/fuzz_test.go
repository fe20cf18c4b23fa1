package promotion

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// FuzzStarted: what a started event is decoded to is within the contract, and everything else is permanent.
func FuzzStarted(f *testing.F) {
	for _, s := range []string{`{"promotionId":12345,"promotionType":"POINT","totalCount":1000000}`, `{"promotionId":1,"totalCount":-1}`, `{"promotionId":1e3}`, `[]`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var m StartedMessage
		if err := pipeline.Decode(payload, &m); err != nil {
			require.True(t, pipeline.IsPermanent(err))
			require.Equal(t, pipeline.ClassUndecodable, pipeline.Class(err))
			return
		}
		require.Positive(t, m.PromotionID)
		require.GreaterOrEqual(t, m.TotalCount, int64(0))
		text, err := json.Marshal(m)
		require.NoError(t, err)
		var again StartedMessage
		require.NoError(t, pipeline.Decode(text, &again))
		require.Equal(t, m, again)
	})
}

// FuzzRetryRecord: the retry record of anything that can be paid asks for the same payment, whatever the count.
func FuzzRetryRecord(f *testing.F) {
	for _, r := range records {
		if len(r.payload) < 1000 {
			f.Add([]byte(r.payload), 1)
		}
	}
	f.Add([]byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5,"RETRYCOUNT":3,"retrycount":9}`), 9)
	f.Add([]byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5,"Amount":6,"TARGETID":8}`), -3)
	f.Fuzz(func(t *testing.T, payload []byte, n int) {
		retried, err := retryPayload(payload, n)
		for _, s := range strategies() {
			fresh, bad := s.decode(payload)
			if bad != nil || len(retried) > MaxPayloadBytes {
				continue
			}
			require.NoError(t, err)
			again, err := s.decode(retried)
			require.NoError(t, err, "%s", retried)
			require.Equal(t, fresh, again)
		}
	})
}

// FuzzUnambiguous: what is decoded has each field once, under its exact name, so that every decoder reads the same payout.
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
		for _, s := range strategies() {
			p, err := s.decode(payload)
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
			again, err := s.decode(exact)
			require.NoError(t, err)
			require.Equal(t, p, again)
			require.NotContains(t, string(p.request), "\uFFFD")
		}
	})
}

// FuzzTargets: every target of a campaign file can be published and is accepted again; the first mistake ends it and
// names its line.
func FuzzTargets(f *testing.F) {
	head := strings.Join(csvColumns, ",") + "\n"
	for _, s := range []string{"", "POINT,7,500,\nVOUCHER,8,,V-1\n", "POINT,7,500,V\n", "POINT,-7,500,\n", "\"POINT\",7,\"5\n00\",\n", "VOUCHER,9,,\"V,\"\"1\"\n", "POINT,7,500\n", "\xef\xbb\xbf"} {
		f.Add(head + s)
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		failed := false
		for target, err := range readCSV(strings.NewReader(text)) {
			require.False(t, failed, "nothing comes after a mistake")
			if err != nil {
				failed = true
				require.Regexp(t, `^[1-9][0-9]*: `, err.Error())
				continue
			}
			s, known := strategyOf(target.kind)
			require.True(t, known)
			payload, err := s.record(1, 2, target.id, target.value)
			require.NoError(t, err)
			p, err := s.decode(payload)
			require.NoError(t, err)
			require.Equal(t, target.id, p.target)
		}
	})
}
