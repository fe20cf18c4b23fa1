package kafka

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

func TestClaimBelievesDueTimesOnRetryTopicsOnly(t *testing.T) {
	onBench(t, pipeline.Flow{Window: 4}, benchOption{plain: true}, func(t *testing.T, b *bench) {
		b.writeRecord("", due(time.Hour), "from a foreign producer")
		require.Equal(t, []int64{0}, offsets(b.out()))
	})
}

// A foreign record whose due time no delay can give would be moved to the end of its topic without end.
func TestClaimDeliversWhatWouldNeverBeDue(t *testing.T) {
	onBench(t, pipeline.Flow{Window: 4}, benchOption{comeBack: true}, func(t *testing.T, b *bench) {
		b.writeRecord("", map[string]string{pipeline.MetaDue: "9999-12-31T23:59:59Z"}, "never")
		b.writeRecord("", due(math.MaxInt64), "the longest delay")
		got := b.out()
		require.Equal(t, []int64{0}, offsets(got))
		require.Equal(t, "9999-12-31T23:59:59Z", got[0].Metadata.Get(pipeline.MetaDue))
		got[0].Ack()
		time.Sleep(longestHold)
		synctest.Wait()
		require.Len(t, b.again.Messages(), 1, "a delay of 292 years is one that a route can have")
		require.Equal(t, "the longest delay", string(b.again.Messages()[0].Payload))
		require.EqualValues(t, 2, b.marked())
		require.Empty(t, b.out())
	})
}

// Records that are far from due leave room for those behind them, slowly and without loss.
func TestClaimMovesWhatIsFarFromDue(t *testing.T) {
	for name, opt := range map[string]benchOption{
		"a full window": {config: func(c *Config) { c.Window = 4 }},
		"full bytes":    {config: func(c *Config) { c.WindowBytes = 3000 }},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, pipeline.Flow{}, opt, func(t *testing.T, b *bench) {
				for range 4 {
					b.writeRecord("key", due(time.Hour), string(make([]byte, 1000)))
				}
				b.writeRecord("key", due(moveEvery/2), "soon")
				for range 8 {
					b.writeRecord("", due(time.Hour), string(make([]byte, 1000)))
				}
				b.write("now")
				require.Empty(t, b.out())
				got := map[string]bool{}
				for start := time.Now(); time.Since(start) < 8*moveEvery; time.Sleep(time.Second) {
					for _, m := range b.out() {
						got[string(m.Payload)] = true
						m.Ack()
					}
					moved := len(b.again.Messages())
					require.LessOrEqual(t, moved, 4*int(1+time.Since(start)/moveEvery), "at most a window per interval")
				}
				require.Equal(t, map[string]bool{"soon": true, "x": true}, got)
				first := b.again.Messages()[0]
				require.Equal(t, "key", first.Metadata.Get(pipeline.MetaKey))
				require.NotEmpty(t, first.Metadata.Get(pipeline.MetaDue))
				require.Len(t, first.Payload, 1000)

				moved := len(b.again.Messages())
				require.Equal(t, b.claim.status(time.Now()).notDue, 12-moved)
				time.Sleep(10 * moveEvery)
				synctest.Wait()
				require.Len(t, b.again.Messages(), moved, "nothing is moved when nothing waits behind it")
				time.Sleep(time.Hour)
				require.Len(t, b.out(), 12-moved, "what stayed is delivered when it is due")
			})
		})
	}
	onBench(t, pipeline.Flow{Window: 2}, benchOption{}, func(t *testing.T, b *bench) {
		b.again.FailWith(errors.New("no broker"))
		b.writeRecord("", due(time.Hour), "a")
		b.writeRecord("", due(time.Hour), "b")
		b.write("now")
		time.Sleep(10 * moveEvery)
		require.Empty(t, b.out())
		require.Zero(t, b.marked(), "what can't be moved stays")
		b.again.FailWith(nil)
		time.Sleep(2 * moveEvery)
		require.Equal(t, []int64{2}, offsets(b.out()))
		require.EqualValues(t, 2, b.marked())
	})
	onBench(t, pipeline.Flow{Window: 2, Order: pipeline.OrderKey}, benchOption{}, func(t *testing.T, b *bench) {
		b.writeRecord("k", due(time.Hour), "a")
		b.writeRecord("j", due(time.Hour), "b")
		b.write("k")
		time.Sleep(10 * moveEvery)
		require.Empty(t, b.out())
		require.Empty(t, b.again.Messages(), "an order is kept")
	})
}

// A moved record is read again later. It stays where it is when nothing waits behind it. It is
// moved more and more rarely when no due record is behind it.
func TestClaimDoesNotMoveInCircles(t *testing.T) {
	const window = 10
	hour := 6 * moveEvery * 60
	for name, tt := range map[string]struct{ far, least, most int }{
		"exactly a window":  {far: window},
		"one more":          {far: window + 1, least: window, most: 30 * window},
		"a longer pass":     {far: 3 * window, least: 3 * window, most: 50 * window},
		"less than windows": {far: window - 1},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, pipeline.Flow{Window: window}, benchOption{comeBack: true}, func(t *testing.T, b *bench) {
				for range tt.far {
					b.writeRecord("", due(hour+hour/2), "far")
				}
				time.Sleep(hour)
				synctest.Wait()
				moved := len(b.again.Messages())
				require.GreaterOrEqual(t, moved, tt.least)
				require.LessOrEqual(t, moved, tt.most, "each 10 seconds would be %d", 360*window)

				b.write("now")
				time.Sleep(longestPause * time.Duration(2+tt.far/window))
				got := b.out()
				require.Len(t, got, 1, "and what is due is found")
				require.Equal(t, "x", string(got[0].Payload))
				got[0].Ack()
				time.Sleep(hour)
				delivered := 0
				for range tt.far * 2 {
					for _, m := range b.out() {
						m.Ack()
						delivered++
					}
				}
				require.Equal(t, tt.far, delivered, "without loss")
			})
		})
	}
}

// A record that becomes due while it waits for bytes goes on.
func TestClaimRecordBecomesDueWhileItWaitsForBytes(t *testing.T) {
	onBench(t, pipeline.Flow{}, benchOption{config: func(c *Config) { c.WindowBytes = 1000 }}, func(t *testing.T, b *bench) {
		b.again.FailWith(errors.New("it stays where it is"))
		b.writeRecord("", due(time.Hour), "held")
		synctest.Wait()
		_, ok := b.sub.budget.take(1000 - b.sub.budget.used)
		require.True(t, ok)
		b.writeRecord("", due(time.Minute), "soon")
		require.Empty(t, b.out())
		time.Sleep(time.Minute)
		require.Equal(t, []int64{1}, offsets(b.out()))
	})
}

// Another partition's records, held for hours, take all bytes: a partition with nothing in flight
// gets on all the same.
func TestClaimIsNotStalledByTheBytesOfOthers(t *testing.T) {
	for name, before := range map[string]func(*bench){
		"nothing in the window":                      func(*bench) {},
		"nothing in the window but what isn't due":   func(b *bench) { b.writeRecord("", due(time.Hour), "held") },
		"a record that was in the way is done later": func(b *bench) { b.writeRecord("", due(time.Second), "soon") },
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, pipeline.Flow{}, benchOption{config: func(c *Config) { c.WindowBytes = 1000 }}, func(t *testing.T, b *bench) {
				before(b)
				b.write("a")
				first := b.out()
				_, ok := b.sub.budget.take(1000 - b.sub.budget.used)
				require.True(t, ok)
				b.writeRecord("", nil, string(make([]byte, 500)))
				b.writeRecord("", nil, string(make([]byte, 500)))
				seen := 1
				for range 30 {
					for _, m := range first {
						m.Ack()
					}
					time.Sleep(100 * time.Millisecond)
					first = b.out()
					for _, m := range first {
						if len(m.Payload) == 500 {
							seen++
						}
					}
				}
				require.Equal(t, 3, seen, "without a byte of the budget")
			})
		})
	}
}
