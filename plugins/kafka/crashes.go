package kafka

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// A record may kill its process, by memory for example, before anything can be said about it. A
// claim of a route with dead letters counts that in the commit's metadata, as follows.
//
// A claim commits that it owns the partition before it delivers its first record, and its last mark
// says that it does no more, or hands on the deaths whose suspects are not done. So an owner whose
// commit was left owned has died, or has handed on its suspicion. Most processes die
// for other reasons, so one death costs little: the next owner has a small window and commits after
// each of them, so that the records it had in flight are known to be among the next few. When it
// dies too, its successor is careful with these: it runs one at a time, in the whole process, and
// commits that it does before it starts. A death then adds one to the count of this record alone.
// From then on the record runs one at a time with every owner until it is done, and the count adds to
// Delivery.Delivered. At the limit the record is no longer handled.
const (
	// wary is how many records an owner whose predecessor has died has in flight at most, and how
	// many it reads between its commits.
	wary = 32
	// normally is how many records other owners read between their commits. They do not wait for
	// these, so up to twice as many may have been read since the last one.
	normally = 2048
	// longestTurn is how long a record that may kill the process keeps all others of that kind waiting,
	// in every partition and route. If it takes longer, two may run when the process dies, and each
	// gets a death.
	longestTurn = 5 * time.Second
)

// deathLimit is how many processes may die while they run a record. Two deaths come before, which
// are not counted because the record is not known.
const deathLimit = 5

// deadly returns the error of a record at whose runs so many processes have died, or nil.
func (c *claim) deadly(died int) error {
	if limit := c.sub.deathLimit; limit == 0 || died < limit {
		return nil
	}
	err := fmt.Errorf("%d processes died while they ran this record, so it is not run again; look in their logs for the cause", died)
	return pipeline.WithClass(err, classProcessDeath)
}

// crashes counts the deaths of the owners of one partition. The claim's lock guards it.
type crashes struct {
	deaths  int           // of owners in a row
	read    int           // records read by this claim
	counts  map[int64]int // by offset: deaths while the record ran, including one while it runs
	careful int64         // records up to this offset run one at a time
	running *running
	commit  func()        // commits the marks, and waits for it
	behind  chan struct{} // has a commit that nobody waits for
	place   chan struct{} // has the record that a careful claim runs
}

// running is the record that a careful claim runs, and its count without this run.
type running struct {
	offset int64
	before int
}

// full says whether a wary claim reads no further for now. The caller holds the claim's lock.
//
// Records of a retry topic that are not due hold back any number of others, and neither kind can
// kill the process. So only the records that are being delivered count there.
func (k *crashes) full(c *claim) bool {
	if k.deaths == 0 {
		return false
	}
	if c.sub.retries != nil {
		return c.deliverers-len(c.held) >= wary
	}
	return c.win.count >= wary
}

// suspects is how many records must be read before none of them was in flight at a death: those of
// the dead owner's window at its last commit, and those that it read afterwards.
func (k *crashes) suspects(c *claim) int {
	switch window := len(c.win.ring); {
	case k.deaths < 2:
		return window + 2*normally
	case c.sub.retries != nil: // see full
		return window + wary
	default:
		return wary + wary
	}
}

// every is after how many records the marks are committed.
func (k *crashes) every() int {
	if k.deaths > 0 {
		return wary
	}
	return normally
}

// countCrashes has the claim count. known is the commit at which it begins.
func (c *claim) countCrashes(known progress, commit func()) {
	k := &crashes{counts: map[int64]int{}, careful: -1, commit: commit, behind: make(chan struct{}, 1), place: make(chan struct{}, 1)}
	maps.Copy(k.counts, known.counts)
	if known.owned {
		k.deaths = known.deaths + 1
		level := slog.LevelInfo
		if k.deaths > 1 {
			level, k.careful = slog.LevelWarn, math.MaxInt64
		}
		c.sub.log.Log(c.ctx, level, "kafka partition had an owner that died; what was in flight is suspected", logs.Partition, c.partition, keyDeaths, k.deaths)
	}
	c.crashes = k
	c.describe()
}

// describe renews the metadata of the marks. The caller holds the lock, or has the claim alone.
func (c *claim) describe() {
	p := progress{topic: c.topic}
	if k := c.crashes; k != nil {
		p.owned, p.deaths, p.counts = true, k.deaths, k.counts
	}
	c.metadata = encodeProgress(p)
}

// standing returns the commit of this moment. next is the first offset that was not read. The
// caller holds the lock.
func (c *claim) standing(next int64) progress {
	p := progress{base: next, topic: c.topic, done: append(c.win.ackedOffsets(), c.done.after(c.last)...)}
	if first := c.win.first(); first != nil {
		p.base = first.offset
	}
	if k := c.crashes; k != nil {
		p.owned, p.deaths, p.counts = true, k.deaths, k.counts
	}
	return p
}

// setMark marks p.
func (c *claim) setMark(p progress) { c.mark(p.base, encodeProgress(p)) }

// countRead counts the record at offset, which is about to be added to the window, and commits
// where that limits what is in flight.
func (c *claim) countRead(offset int64) {
	k := c.crashes
	if k == nil {
		return
	}
	k.read++ // no other goroutine writes this or the deaths, so most records need no lock
	passed := k.deaths > 0 && k.read > k.suspects(c)
	if !passed && k.read > 1 && k.read%k.every() != 0 {
		return
	}
	c.mu.Lock()
	if passed {
		k.deaths, k.careful = 0, min(k.careful, c.last)
		c.describe()
	}
	waits := passed || k.read == 1 || k.deaths > 0
	c.setMark(c.standing(offset))
	c.mu.Unlock()
	if waits {
		k.commit()
	} else {
		c.commitBehind()
	}
}

// commitBehind commits the marks while the claim goes on, unless an earlier such commit has no answer
// yet. In a cooperative group the coordinator answers no commit while a join is pending.
func (c *claim) commitBehind() {
	k := c.crashes
	select {
	case k.behind <- struct{}{}:
		c.sub.deliverers.Go(func() {
			k.commit()
			<-k.behind
		})
	default:
	}
}

// begin counts a start of r when its claim is careful. died is how many processes died while they
// ran r; end is called after the answer, and nil for a start that is not counted. begin returns false
// when the claim ended first.
func (c *claim) begin(r *record) (died int, end func(), ok bool) {
	k := c.crashes
	if k == nil {
		return 0, nil, true
	}
	c.mu.Lock()
	died, careful := k.counts[r.offset], r.offset <= k.careful || k.counts[r.offset] > 0
	c.mu.Unlock()
	if !careful {
		return died, nil, true
	}
	select {
	case k.place <- struct{}{}:
	case <-c.ctx.Done():
		return 0, nil, false
	}
	if !c.sub.gate.wait(c.ctx) { // it must not keep the turn from others
		<-k.place
		return 0, nil, false
	}
	select {
	case c.sub.turn <- struct{}{}:
	case <-c.ctx.Done():
		<-k.place
		return 0, nil, false
	}
	free := sync.OnceFunc(func() { <-c.sub.turn })
	late := time.AfterFunc(longestTurn, free)
	c.mu.Lock()
	run := &running{r.offset, died}
	k.running = run
	k.counts[r.offset] = died + 1
	c.describe()
	c.setMark(c.standing(r.offset))
	c.mu.Unlock()
	k.commit()
	return died, func() {
		c.answered(run)
		late.Stop()
		free()
		<-k.place
	}, true
}

// answered takes back the count of a record that ran, because the process has outlived it.
func (c *claim) answered(run *running) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.survived(run)
	if !c.ended {
		c.setMark(c.standing(c.last + 1))
	}
}

// survived is answered without a mark. The caller holds the lock.
func (c *claim) survived(run *running) {
	k := c.crashes
	if k.counts[run.offset] = run.before; run.before == 0 {
		delete(k.counts, run.offset)
	}
	if k.running == run {
		k.running = nil
	}
	c.describe()
}

// resume takes over a delivery that an earlier claim of this process has counted as running and left
// unanswered. Its answer takes back the count, which the commit has kept.
func (c *claim) resume(r *record, d *delivery) {
	k := c.crashes
	if k == nil || !d.counted {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := k.counts[r.offset]; n > 0 {
		run := &running{r.offset, n - 1}
		k.running = run
		d.end = func() { c.answered(run) }
	}
}

// runs says whether the record at offset has been counted as running and has no answer. The caller
// holds the claim's lock.
func (k *crashes) runs(offset int64) bool {
	return k != nil && k.running != nil && k.running.offset == offset
}

// handOn completes the last mark of a claim that ends without a death. Unless all suspects are
// known to be done, the next owner must suspect them as this one did, because a suspect that this
// claim has not run can still kill its process. The counts of single records are part of the mark
// already; that of a record without an answer is among them. The caller holds the lock.
//
// The end of the partition counts the markers of transactions, which a reader never gets. Behind a
// marker the claim can't tell whether it has read all records, so it hands the suspicion on until it
// has read enough of them (see suspects).
func (c *claim) handOn(last *progress) {
	k := c.crashes
	if k == nil {
		return
	}
	last.owned, last.deaths = false, 0
	end, _, _ := c.endOf(time.Now())
	doneAll := end > 0 && c.win.count == 0 && c.next >= end // nothing is left that a former owner can have read
	if k.deaths > 0 && !doneAll {
		last.owned, last.deaths = true, k.deaths-1 // the next owner adds the death that this one found
	}
}

// forget drops the counts of records before offset. The caller holds the lock.
func (c *claim) forget(before int64) {
	k := c.crashes
	if k == nil || len(k.counts) == 0 {
		return
	}
	maps.DeleteFunc(k.counts, func(offset int64, _ int) bool { return offset < before })
	c.describe()
}

// countsMax bounds the text of the counts. Together with the rest of the metadata it is under the
// broker's limit.
const countsMax = 200

// encodeCounts returns offset:count of each, separated by commas, as many as there is room for.
func encodeCounts(counts map[int64]int) string {
	var parts []string
	size := 0
	for _, offset := range slices.Sorted(maps.Keys(counts)) {
		part := strconv.FormatInt(offset, 10) + ":" + strconv.Itoa(counts[offset])
		if size += len(part) + 1; size > countsMax {
			break
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

func decodeCounts(text string) map[int64]int {
	counts := map[int64]int{}
	for part := range strings.SplitSeq(text, ",") {
		at, n, _ := strings.Cut(part, ":")
		offset, err := strconv.ParseInt(at, 10, 64)
		count, countErr := strconv.Atoi(n)
		if err == nil && countErr == nil && offset >= 0 && count > 0 {
			counts[offset] = count
		}
	}
	return counts
}
