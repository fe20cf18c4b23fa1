package gateway

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lives is a job whose log expires while a watcher has received all of it. Then the job begins
// again. Contents are few, so that many numbers have the same in both lives.
type lives struct {
	rng  *rand.Rand
	seq  *sequence
	now  time.Time
	log  map[int64]item
	top  int64
	end  int64
	keep int64
	ms   int64
	view map[int64]uint64 // what the watcher has, by number
	gaps map[int64]bool   // of what is missing
	t    *testing.T

	second bool
}

func (l *lives) add(n int64, content uint64, end string) item {
	l.ms += l.rng.Int64N(2)
	it := item{seq: n, content: content, end: end, entry: entry{l.ms, n}}
	l.log[n], l.top = it, max(l.top, n)
	delete(l.log, l.top-l.keep)
	if end != "" {
		l.end = n
	}
	return it
}

func (l *lives) page(after int64) page {
	p := page{after: after, top: l.top, end: l.end, first: max(0, l.top-l.keep) + 1}
	if state, ok := l.log[l.top]; ok {
		p.state = &state
	}
	for n := max(after, 0) + 1; n <= l.top; n++ {
		if it, ok := l.log[n]; ok {
			if len(p.items) == 10 {
				p.more = true
				break
			}
			p.items = append(p.items, it)
		}
	}
	return p
}

// receive takes what is sent. A number is sent again only after a gap has taken it back, which begins in the
// first life with a number that was missing.
func (l *lives) receive(steps []outgoing) {
	for _, one := range steps {
		switch one.kind {
		case numbered:
			_, twice := l.view[one.item.seq]
			require.False(l.t, twice && !one.ends, "%d is sent twice", one.item.seq)
			l.view[one.item.seq] = one.item.content
			delete(l.gaps, one.item.seq)
		case again, missing:
			require.True(l.t, l.second || one.kind == missing || l.gaps[one.from], "%d is taken back", one.from)
			for n := one.from; n <= one.to; n++ {
				delete(l.view, n)
				l.gaps[n] = one.kind == missing
			}
		case transient, latest:
		}
	}
}

func (l *lives) feed(it item) {
	out, _ := l.seq.feed(it, l.now)
	l.receive(out)
}

// read reads the log as long as the job is behind. lost: feed entries may have been missed.
func (l *lives) read(lost bool) {
	if lost {
		l.receive(l.seq.page(l.page(l.seq.next()), l.now))
	}
	for range 100 {
		if !l.seq.needsLog() {
			return
		}
		l.receive(l.seq.page(l.page(l.seq.next()), l.now))
		l.now = l.now.Add(time.Second)
	}
}

// A watcher has the contents that the log has at the end, or a gap.
func TestAWatcherOfASecondLifeHasItsEvents(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			l := &lives{t: t, rng: rng, seq: newSequence(time.Second), now: time.Unix(1e9, 0), log: map[int64]item{}, view: map[int64]uint64{}, gaps: map[int64]bool{}, keep: []int64{100, 300}[rng.IntN(2)], ms: 1}
			require.True(t, l.seq.attach(0, page{}))
			contents := 1 + rng.Uint64N(4)
			late := int64(2 + rng.IntN(60))
			for n := range []int64{3, 60, 70, 200}[rng.IntN(4)] {
				if n+1 != late {
					l.feed(l.add(n+1, rng.Uint64N(contents), ""))
				}
				l.read(false)
				if n == 150 { // a producer repeats one that has left the log
					l.feed(item{seq: 1 + rng.Int64N(50), content: contents, entry: entry{l.ms + 1, 0}})
					l.read(false)
				}
			}
			if late < l.top {
				l.feed(l.add(late, rng.Uint64N(contents), ""))
				l.read(true)
			}
			l.log, l.top, l.second, l.ms = map[int64]item{}, 0, true, l.ms+1000
			last := 1 + rng.Int64N(250)
			for n := int64(1); n <= last; {
				burst := rng.Int64N(40)
				lost := rng.IntN(4) == 0 && n+burst < l.seq.sentUpTo // else the log can look like before
				for ; burst >= 0 && n <= last; n, burst = n+1, burst-1 {
					end := ""
					if n == last {
						end = "done"
					}
					it := l.add(n, rng.Uint64N(contents), end)
					if !lost {
						l.feed(it)
					}
					if rng.IntN(10) == 0 {
						l.feed(it) // a router was killed
					}
				}
				l.read(lost)
			}
			for n, it := range l.log {
				got, has := l.view[n]
				require.True(t, has || l.gaps[n], "%d of %d is missing", n, last)
				require.True(t, !has || it.content == got, "%d of %d has the content of the first life", n, last)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// A gateway is behind in the feed. A watcher at the end of the log is attached, while another one
// still reads the log.
func TestAFeedBehindTheLogGivesNoNumberAgain(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	number := func(n int64) item { return item{seq: n, content: uint64(n), entry: entry{millis: n}} }
	for _, cursor := range []int64{500, 1 << 40} { // at the end, and made up
		s := newSequence(time.Second)
		state := number(500)
		read := page{top: 500, state: &state, items: []item{number(1), number(2)}, more: true}
		_, next := s.readPage(0, 0, read, now)
		require.EqualValues(t, 2, next)
		require.True(t, s.attach(cursor, read))
		for n := int64(3); n <= 500; n++ {
			out, _ := s.feed(number(n), now)
			require.Empty(t, out)
			require.False(t, s.needsLog(), n)
		}
		out, _ := s.feed(number(501), now)
		require.Len(t, out, 1)
	}
}
