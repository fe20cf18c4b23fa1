package store

import (
	"encoding/hex"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline"
)

// Any client can write the header of a replay. A value that no replay can have written is ignored.
func TestAHeaderThatNoReplayWrote(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		known := orderDeadLetter(1)
		mustPut(t, s, known)
		mustReplay(t, s, known.ID, false)
		for n, header := range []string{
			"", "/", "/1", "\xff/1", "a\x00/1", "0123456789abcde\x00/1", "0123456789abcdeG/1", known.ID, known.ID + "/", known.ID + "/x",
			known.ID + "/0", known.ID + "/-1", known.ID + "/2147483647", known.ID + "/3000000000", known.ID + "/99999999999999999999", known.ID + "0/1",
		} {
			for _, payload := range [][]byte{known.Payload, []byte("another")} {
				l := failedReplay(known, 1, n)
				l.Headers[pipeline.MetaReplay], l.Payload = header, payload
				l.ID, l.Lineage = ID(header, string(payload)), ""
				require.NoError(t, s.Put(t.Context(), l), "%q", header)
				got, _ := mustGet(t, s, l.ID)
				require.Equal(t, Open, got.State, "%q", header)
				require.Equal(t, 1, got.Generation, "%q", header)
				require.Equal(t, header, got.Headers[pipeline.MetaReplay])
			}
		}
		got, actions := mustGet(t, s, known.ID)
		require.Equal(t, Replayed, got.State)
		require.Len(t, actions, 1)

		// A later generation than that of the dead letter counts as its newest.
		for n := range 3 {
			l := failedReplay(known, 2147483646, n)
			mustPut(t, s, l)
			l.ID, l.Payload = ID("other", l.ID), []byte("another")
			mustPut(t, s, l)
			other, _ := mustGet(t, s, l.ID)
			require.Equal(t, Parked, other.State)
			require.Equal(t, n+3, other.Generation)
			got, _ = mustGet(t, s, known.ID)
			require.Equal(t, Parked, got.State)
			require.Equal(t, n+2, got.Generation)
			mustReplay(t, s, known.ID, true)
		}
	})
}

// anyText draws a text of a message: any bytes, or more than fits an index.
func anyText(t *rapid.T, name string) string {
	if rapid.IntRange(0, 3).Draw(t, name+" is long") > 0 {
		return string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, name))
	}
	b := make([]byte, maxText/2+1)
	_, _ = rand.NewChaCha8([32]byte{rapid.Byte().Draw(t, name)}).Read(b)
	if rapid.Bool().Draw(t, name+" is text") {
		return hex.EncodeToString(b)
	}
	return string(b)
}

// A message of any bytes can become a dead letter. Otherwise it would block its partition.
func TestAnyMessageIsStored(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, open func() *Store) {
		s := open()
		known := orderDeadLetter(1)
		mustPut(t, s, known)
		ctx, n := t.Context(), 0
		rapid.Check(t, func(t *rapid.T) {
			text := func(name string) string { return anyText(t, name) }
			replay, payload, handler := text("replay"), text("payload"), text("handler")
			ledger := rapid.Bool().Draw(t, "of a ledger")
			if rapid.Bool().Draw(t, "of a known dead letter") {
				payload, handler = rapid.SampledFrom([]string{payload, string(known.Payload)}).Draw(t, "replayed"), known.Handler
				replay = known.ID + "/" + rapid.StringMatching(`-?[0-9]{1,20}`).Draw(t, "generation")
			}
			at := rapid.Int64Range(-62167219200, 253402300799) // what RFC 3339 can say
			n++
			l := From(ID(strconv.Itoa(n)), "", text("topic"), text("uuid"), pipeline.DeadLetter{
				Payload: []byte(payload), Key: text("key"), Class: text("class"), Error: text("error"), Handler: handler,
				SourceKind: text("kind"), Source: text("source"),
				Origin:   text("origin") + rapid.SampledFrom([]string{"", "@", "/3@4", "/2147483647@9223372036854775807", "@1-0"}).Draw(t, "place"),
				Attempts: rapid.Int().Draw(t, "attempts"), FirstFailedAt: unix(at.Draw(t, "first")), FailedAt: unix(at.Draw(t, "last")),
				Metadata: map[string]string{pipeline.MetaReplay: replay, pipeline.MetaTraceParent: text("trace"), text("header"): text("value")},
			})
			if ledger {
				l.Subject = text("subject")
				l.Lineage = LineageOf("toy", l.Subject)
			}
			for range 2 { // it is delivered again
				require.NoError(t, s.Put(ctx, l))
			}
			if list, _, err := s.List(ctx, Filter{IDs: []string{l.ID}}, 1); len(list) == 1 {
				require.Equal(t, []string{l.Key, replay}, []string{list[0].Key, list[0].Headers[pipeline.MetaReplay]})
			} else {
				require.NoError(t, err)
			}
			if l.Subject != "" {
				n, err := s.Count(ctx, Filter{Subject: l.Subject, Lineage: l.Lineage})
				require.NoError(t, err)
				require.EqualValues(t, 1, n, "the subject finds it")
			}
		})
	})
}

func TestIndexedTextsStayDifferent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyText(t, "a"), anyText(t, "b")
		require.Equal(t, a == b, indexed(a) == indexed(b))
		require.LessOrEqual(t, len(indexed(a)), 2000)
	})
	require.Equal(t, "payouts/P:1", indexed("payouts/P:1"))
}
