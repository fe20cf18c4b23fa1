package kafka

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestWindowMarksOnlyTheContiguousPrefix runs random reads and acks against a model that keeps
// everything in plain maps.
func TestWindowMarksOnlyTheContiguousPrefix(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 12).Draw(t, "size")
		w := newWindow(size)
		var (
			read     []int64 // every offset read, ascending
			byOffset = map[int64]*record{}
			acked    = map[int64]bool{}
			offset   = rapid.Int64Range(0, 5).Draw(t, "first")
			mark     = int64(-1)
		)
		// unmarked is the model: what was read and is not covered by the longest acked prefix.
		unmarked := func() []int64 {
			i := 0
			for i < len(read) && acked[read[i]] {
				i++
			}
			return read[i:]
		}
		t.Repeat(map[string]func(*rapid.T){
			"read": func(t *rapid.T) {
				if w.full() {
					t.Skip("full")
				}
				r := &record{offset: offset}
				w.add(r, time.Time{})
				byOffset[offset] = r
				read = append(read, offset)
				offset += rapid.Int64Range(1, 4).Draw(t, "gap") // compaction leaves gaps
			},
			"ack": func(t *rapid.T) {
				if len(read) == 0 {
					t.Skip("nothing read")
				}
				o := rapid.SampledFrom(read).Draw(t, "offset")
				before := len(unmarked())
				again := acked[o]
				acked[o] = true
				next, covered := w.ack(byOffset[o], time.Time{})
				require.Equal(t, before-len(unmarked()), covered)
				if again {
					require.Zero(t, covered)
				}
				if covered > 0 {
					require.Greater(t, next, mark, "marks only go forward")
					mark = next
				}
			},
			"": func(t *rapid.T) {
				left := unmarked()
				require.Equal(t, len(left) == size, w.full())
				if len(left) == 0 {
					require.Nil(t, w.first())
				} else {
					require.Equal(t, left[0], w.first().offset)
				}
				for _, o := range read {
					if o < mark {
						require.True(t, acked[o], "offset %d is under the mark %d and not acknowledged", o, mark)
					}
				}
				var heldBack []int64
				for _, o := range left {
					if acked[o] {
						heldBack = append(heldBack, o)
					}
				}
				require.Equal(t, heldBack, w.ackedOffsets())
				require.Len(t, heldBack, w.acked)
			},
		})
	})
}

func TestProgressSurvivesTheCommit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Int64Range(0, 1<<40).Draw(t, "base")
		gaps := rapid.SliceOfN(rapid.Int64Range(1, 50), 0, 300).Draw(t, "gaps")
		var offsets doneBefore
		for at := base; len(gaps) > 0; gaps = gaps[1:] {
			at += gaps[0]
			offsets = append(offsets, at)
		}
		want := progress{base: base, topic: topicID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "topic")), done: offsets}
		if want.owned = rapid.Bool().Draw(t, "owned"); want.owned {
			want.deaths = rapid.IntRange(0, 1000).Draw(t, "deaths")
		}
		counts := rapid.MapOfN(rapid.Int64Range(base, base+100), rapid.IntRange(1, 99), 0, 8).Draw(t, "counts")
		if len(counts) > 0 {
			want.counts = counts
		}
		text := encodeProgress(want)
		require.LessOrEqual(t, len(text), 4096, "the broker refuses longer metadata")
		require.Equal(t, want, decodeProgress(base, text))
		for _, o := range offsets {
			require.True(t, offsets.has(o))
		}
		cut := base + rapid.Int64Range(0, 200).Draw(t, "cut")
		for _, o := range offsets.after(cut) {
			require.Greater(t, o, cut)
		}
	})
}

func TestProgressBeyondTheLimitIsLeftOut(t *testing.T) {
	t.Parallel()
	text := encodeProgress(progress{base: 10, topic: topicID{1}, done: doneBefore{11, 10 + 8*progressMax - 1, 10 + 8*progressMax}})
	require.LessOrEqual(t, len(text), 4096)
	require.Equal(t, progress{base: 10, topic: topicID{1}, done: doneBefore{11, 10 + 8*progressMax - 1}}, decodeProgress(10, text))
	require.Empty(t, encodeProgress(progress{base: 10}))
}

// The longest metadata has all of it.
func TestTheLongestProgressFits(t *testing.T) {
	t.Parallel()
	p := progress{topic: topicID{1}, owned: true, deaths: 1 << 40, counts: map[int64]int{}}
	for i := range int64(8 * progressMax) {
		p.done = append(p.done, i)
		p.counts[1<<60+i] = 1 << 40
	}
	text := encodeProgress(p)
	require.LessOrEqual(t, len(text), 4096)
	got := decodeProgress(0, text)
	require.Equal(t, p.done, got.done)
	require.NotEmpty(t, got.counts, "as many as there is room for")
}

func FuzzDecodeProgress(f *testing.F) {
	for _, seed := range []string{"", "millrace1 ", "millrace1 done=AQ", "millrace1 done=!!", "someone else's", "millrace2 done=AQ", "millrace1 topic=AAAAAAAAAAAAAAAAAAAAAQ done=AQ", "millrace1 topic=AQ", "millrace1 owned=2 deaths=7:1,9:2", "millrace1 owned=x deaths=7:,:1,-1:1"} {
		f.Add(int64(5), seed)
	}
	f.Fuzz(func(t *testing.T, base int64, metadata string) {
		if base < 0 || base > 1<<60 {
			t.Skip("no Kafka offset")
		}
		last := int64(-1)
		for _, o := range decodeProgress(base, metadata).done {
			require.GreaterOrEqual(t, o, base)
			require.Greater(t, o, last)
			last = o
		}
	})
}
