package promotiontype

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What Encode writes is decoded in one pass, and everything else by the complete decoder.
func TestCanonicalPayloads(t *testing.T) {
	t.Parallel()
	for _, s := range All() {
		record, err := s.Encode(12345, 9, 777, s.Sample(500))
		require.NoError(t, err)
		p, ok := s.decodeCanonical(record)
		if s.canonical == nil { // a type that has not opted in
			require.False(t, ok, "%s", record)
			require.NotContains(t, []string{"POINT", "VOUCHER"}, s.Name)
			continue
		}
		require.True(t, ok, "%s", record)
		want, err := s.decodeAny(record)
		require.NoError(t, err)
		require.Equal(t, want, p)
	}
	for _, payload := range unusual {
		for _, s := range All() {
			_, ok := s.decodeCanonical([]byte(payload))
			require.False(t, ok, payload)
		}
	}
}

var unusual = []string{
	``, `{`, `{}`, `null`, `[]`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":0}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":-5}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":05}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5.0}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":1e3}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":9223372036854775808}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5,"amount":6}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5}}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5} `,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5,"retryCount":1}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount": 5}`,
	`{"promotionId":1,"targetId":7,"promotionSummaryId":9,"amount":5}`,
	`{"PromotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":""}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"a<b"}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"a\\u0062"}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"é"}`,
	`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"12345678901234567890123456789012345678901234567890123456789012345"}`,
}

// FuzzCanonical: what the fast decoder takes, the complete one decodes to the same payout.
func FuzzCanonical(f *testing.F) {
	for _, payload := range unusual {
		f.Add([]byte(payload))
	}
	f.Add([]byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":999999999999999999}`))
	f.Add([]byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V-5 '/="}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		for _, s := range All() {
			p, ok := s.decodeCanonical(payload)
			if !ok {
				continue
			}
			want, err := s.decodeAny(payload)
			require.NoError(t, err)
			require.Equal(t, want, p)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	for _, s := range All() {
		record, err := s.Encode(12345, 9, 777, s.Sample(500))
		require.NoError(b, err)
		for name, decode := range map[string]func([]byte) (Payout, error){"canonical": s.Decode, "any": s.decodeAny} {
			b.Run(s.Name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := decode(record); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
