package ledger

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// The test runs random histories of a few effects of each kind on two instances. It compares every
// result and every row with the pure function. MILLRACE_HISTORIES is the number of histories.
func TestDatabaseFollowsTheTransitionFunction(t *testing.T) {
	t.Parallel()
	histories := 60
	if s := os.Getenv("MILLRACE_HISTORIES"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		histories = n
	}
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		seed := uint64(time.Now().UnixNano())
		if s := os.Getenv("MILLRACE_HISTORY_SEED"); s != "" {
			seed, _ = strconv.ParseUint(s, 10, 64)
		}
		t.Logf("seed %d", seed)
		ledgers := []*Ledger{h.open(t), h.open(t, as("b"))}
		for _, l := range ledgers {
			for kind, grace := range graces {
				require.NoError(t, l.Register(t.Context(), Kind{Name: kind, Policy: policyOf(kind), Grace: grace, Results: true, Same: sameButSpaces}))
			}
			l.store = &mortal{store: l.store}
		}
		rnd := rand.New(rand.NewPCG(seed, 1))
		for n := range histories {
			m := newModel(t, h, rnd, ledgers)
			m.log = append(m.log, fmt.Sprint("history ", n))
			for left := 39; left >= 0; left-- {
				m.step()
				m.compare(left == 0)
			}
			m.checkCalls()
		}
	})
}

type model struct {
	t       *testing.T
	h       *testDB
	rnd     *rand.Rand
	ledgers []*Ledger
	rows    map[Key]rules.Row // Queue, QueueDue and Version as stored: empty
	due     map[Key]time.Time // zero: parked
	parts   map[Key]string
	groups  map[Group]rules.GroupState
	sizes   map[Group]int64 // by Expect
	paused  map[string]bool // kinds
	calls   []rowCall
	ended   map[rowCall]rules.Outcome // stored attempts, with those of the rows of effects
	late    map[rowCall]rules.Outcome // first late answer of each call
	rowOf   map[Key]int64             // by Accept: the row that an effect waits in
	parked  map[Key]bool              // it may be in no row after this, and only claims by lane surely find it
	entries []entry                   // that may come to a worker, some again and some late
	results map[endOf]Result          // of the kinds with a grace, that are not published
	seen    *seen                     // nil: an operation has begun since
	began   time.Time                 // the step
	log     []string
}

type rowCall struct {
	key   Key
	epoch int64
}

func newModel(t *testing.T, h *testDB, rnd *rand.Rand, ledgers []*Ledger) *model {
	require.NoError(t, ledgers[0].store.update(t.Context(), groupLock{}, func(q querier, _ time.Time) error {
		for _, table := range []string{"effects", "due", "attempts", "problems", "results", "deltas", "totals", "groups", "paused", "audit"} {
			if _, err := q.exec(t.Context(), "DELETE FROM once_"+table); err != nil {
				return err
			}
		}
		return nil
	}))
	return &model{t: t, h: h, rnd: rnd, ledgers: ledgers, rows: map[Key]rules.Row{}, due: map[Key]time.Time{}, parts: map[Key]string{},
		groups: map[Group]rules.GroupState{}, sizes: map[Group]int64{}, paused: map[string]bool{}, ended: map[rowCall]rules.Outcome{}, late: map[rowCall]rules.Outcome{},
		rowOf: map[Key]int64{}, parked: map[Key]bool{}, results: map[endOf]Result{}}
}

// record returns one of a few effects. An id contains what separates keys elsewhere.
func (m *model) record() Record {
	r := record([]string{"acme", "a:b", "a"}[m.rnd.IntN(3)], 0)
	r.Kind = testKinds[m.rnd.IntN(len(testKinds))]
	r.ID = []string{"b:c", "c", "d", "e", "f"}[m.rnd.IntN(5)]
	r.Part = []string{"", "p"}[m.rnd.IntN(2)]
	if m.rnd.IntN(4) == 0 {
		r.NotBefore = m.began.Add(time.Duration(m.rnd.IntN(20)-5) * time.Second)
	}
	switch m.rnd.IntN(10) {
	case 0:
		r.Payload = []byte("another request")
	case 1:
		r.Payload = []byte("the request of " + r.text() + "  ") // which means the same
	default:
		r.Payload = []byte("the request of " + r.text())
	}
	return r
}

// same says whether two requests are the same for the kind. Those with a grace have sameButSpaces.
func same(kind string, a, b []byte) bool {
	_, byMeaning := graces[kind]
	return bytes.Equal(a, b) || byMeaning && sameButSpaces(a, b)
}

func sameButSpaces(a, b []byte) bool { return bytes.Equal(bytes.TrimSpace(a), bytes.TrimSpace(b)) }

func (k Key) of() Group { return Group{k.Kind, k.Group} }

func (m *model) state(g Group) rules.GroupState {
	if s, ok := m.groups[g]; ok {
		return s
	}
	return rules.GroupRunning
}

func (m *model) step() {
	l := m.ledgers[m.rnd.IntN(2)]
	m.began, m.seen = l.clock(m.t), nil
	choice := m.rnd.IntN(100)
	m.log = append(m.log, fmt.Sprint(choice, " by ", l.opts.Instance, " at ", m.began.Format("15:04:05.000000")))
	switch {
	case choice < 22:
		m.accept(l)
	case choice < 40:
		m.claim(l)
	case choice < 52:
		m.claimRows(l)
	case choice < 70:
		m.settle(l)
	case choice < 80:
		m.h.advance(time.Duration(m.rnd.IntN(9)) * time.Second)
	case choice < 83:
		m.h.advance([]time.Duration{time.Minute, 2 * time.Hour}[m.rnd.IntN(2)])
	case choice < 88:
		m.steer(l)
	case choice < 90:
		m.steerKind(l)
	case choice < 92:
		m.relay(l)
	case choice < 95:
		m.sweep(l)
	default:
		m.operate(l)
	}
}

// known returns a random accepted effect.
func (m *model) known() (k Key, ok bool) {
	keys := slices.SortedFunc(maps.Keys(m.rows), func(a, b Key) int { return strings.Compare(a.text(), b.text()) })
	if len(keys) == 0 {
		return k, false
	}
	return keys[m.rnd.IntN(len(keys))], true
}

func (m *model) accept(l *Ledger) {
	var batch []Record
	for range 1 + m.rnd.IntN(6) {
		r := m.record()
		// Rows are compared after the batch, so of two records the one that conflicts must not hide the other, which settles
		// what a cancelled group still has.
		if i := slices.IndexFunc(batch, func(b Record) bool { return b.Key == r.Key }); i >= 0 && m.state(r.of()) == rules.GroupCancelled {
			r.Payload = batch[i].Payload
		}
		batch = append(batch, r)
	}
	died := m.mayDie(l)
	results, err := l.Accept(m.t.Context(), batch)
	switch died() {
	case afterCommit:
		require.ErrorIs(m.t, err, errKilled)
		m.find(l, batch)
		return
	case beforeCommit:
		require.ErrorIs(m.t, err, errKilled)
		return
	}
	require.NoError(m.t, err)
	var got []Accepted
	for _, r := range results {
		require.NoError(m.t, r.Err)
		got = append(got, r.Accepted)
	}
	for i, r := range batch {
		row, known := m.rows[r.Key]
		ev := rules.Event{Kind: rules.EventAccept, Group: m.state(r.of())}
		if known {
			ev.Kind, ev.SameRequest = rules.EventAcceptAgain, same(r.Kind, r.Payload, m.look(l).rows[r.Key].payload)
		} else {
			row = rules.Row{}
			m.parts[r.Key] = r.Part
			if !r.NotBefore.IsZero() {
				row.NextAttemptAt = r.NotBefore.Truncate(time.Microsecond).UTC()
			}
		}
		d := m.apply(l, r.Key, row, ev, known)
		want := Known
		switch {
		case d.Next == rules.Conflict:
			want = Conflict
		case m.rows[r.Key].State == rules.Cancelled:
			want = Cancelled
		case !known:
			want = Fresh
		}
		require.Equal(m.t, want, got[i], m)
		m.enter(r, want, results[i].Row)
	}
}

// String is the history, for the message of a failure.
func (m *model) String() string { return strings.Join(m.log, "\n") }

// apply runs the pure function at the time of the database, which is one of the times of the row.
// known: without it the row is new.
func (m *model) apply(l *Ledger, k Key, was rules.Row, ev rules.Event, known bool) rules.Decision {
	now := m.look(l)
	require.Contains(m.t, now.rows, k, m)
	got := stored(now.rows[k].Row)
	due, hasDue := now.due[k]
	p := policyOf(k.Kind)
	p.Instance = l.opts.Instance
	before := was
	before.Queue = rules.QueueRetry
	if !known {
		before.Queue = ""
	}
	var want rules.Row
	var eff rules.Writes
	var d rules.Decision
	wantDue, wantHas := time.Time{}, false
	times := []time.Time{got.AcceptedAt, got.AttemptStartedAt, got.SettledAt, got.NextAttemptAt, due, m.began}
	for failures := range 12 {
		times = append(times, got.NextAttemptAt.Add(-time.Duration(failures)*time.Second))
	}
	times = append(times, got.NextAttemptAt.Add(-p.UnderWay), now.now)
	for _, ev.Now = range times {
		var next rules.Row
		next, eff, d = p.Apply(before, ev)
		want = stored(next)
		wantDue, wantHas = m.due[k], known && !was.State.Settled()
		switch {
		case want.State.Settled():
			wantDue, wantHas = time.Time{}, false
		case d.Reason == "paused":
			wantDue = time.Time{}
		case next == before:
		case next.Queue == rules.QueueRetry:
			wantDue, wantHas = next.QueueDue, true
		default:
			wantDue, wantHas = ev.Now, true
			if ev.Kind == rules.EventAccept && next.NextAttemptAt.After(ev.Now) {
				wantDue = next.NextAttemptAt
			} else if ev.Kind == rules.EventAccept {
				wantDue = ev.Now.Add(graces[k.Kind])
			}
		}
		if want == got && wantDue.Equal(due) && !ev.Now.Before(m.began) {
			break
		}
	}
	require.Equal(m.t, want, got, "%v %s\n%s", ev, k.text(), m)
	require.Equal(m.t, wantHas, hasDue, "due %v %s\n%s", ev, k.text(), m)
	require.True(m.t, wantDue.Equal(due), "due at %s, want %s: %v %s\n%s", due, wantDue, ev, k.text(), m)
	m.rows[k] = want
	if delete(m.due, k); hasDue {
		m.due[k] = due
	}
	if d.Reason == "paused" {
		m.parked[k] = true
	} else if want != was {
		delete(m.rowOf, k)
	}
	if eff.Settled {
		m.settled(k, want)
	}
	if a := eff.Attempt; a != nil && !a.Late {
		m.ended[rowCall{k, a.Epoch}] = a.Outcome
	} else if a != nil {
		if _, again := m.late[rowCall{k, a.Epoch}]; !again {
			m.late[rowCall{k, a.Epoch}] = a.Outcome
		}
	}
	return d
}

// lastSent returns the start of the last send before a claim, by the stored calls.
func lastSent(x Explanation) (at time.Time) {
	for _, a := range x.Calls {
		if a.Kind == rules.CallSend && a.StartedAt.After(at) && !a.Open() { // the open one is the new one
			at = a.StartedAt
		}
	}
	return at
}

func (m *model) settle(l *Ledger) {
	m.rnd.Shuffle(len(m.calls), func(i, j int) { m.calls[i], m.calls[j] = m.calls[j], m.calls[i] })
	var ends []End
	for i := len(m.calls) - 1; i >= 0 && len(ends) < 3; i-- {
		c := m.calls[i]
		if m.rnd.IntN(4) > 0 { // otherwise it is settled once more later
			m.calls = slices.Delete(m.calls, i, i+1)
		}
		outcomes := []rules.Outcome{rules.Done, rules.Done, rules.Throttled, rules.TryAgain, rules.Unclear, rules.Unclear, rules.Rejected, rules.Misconfigured,
			rules.NotDone, rules.Interrupted, rules.NotSent, rules.Unrecognized}
		e := end(Claimed{Key: c.key, Epoch: c.epoch}, outcomes[m.rnd.IntN(len(outcomes))])
		e.Counted = m.rnd.IntN(2) == 0
		ends = append(ends, e)
	}
	died := m.mayDie(l)
	results, err := l.Settle(m.t.Context(), ends)
	how := died()
	if how != alive {
		require.ErrorIs(m.t, err, errKilled)
		for _, e := range ends { // and the answer is stored later, or once more
			m.calls = append(m.calls, rowCall{e.Key, e.Epoch})
		}
	}
	stored := func(e End) bool {
		s := l.store.(*mortal)
		k, err := l.registered(e.Kind)
		require.NoError(m.t, err)
		return how == alive || how == afterCommit || s.stored[rowKey{k.number, e.Group, e.ID}]
	}
	// They are applied one after the other, in the order of their keys.
	order := make([]int, len(ends))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(ends[a].Key.text(), ends[b].Key.text()) })
	for i := 0; i < len(order); i++ {
		e := ends[order[i]]
		if i+1 < len(order) && ends[order[i+1]].Key == e.Key {
			m.settleTwice(l, e, ends[order[i+1]])
			for i+1 < len(order) && ends[order[i+1]].Key == e.Key {
				i++
			}
			continue
		}
		if !stored(e) {
			continue
		}
		d := m.apply(l, e.Key, m.rows[e.Key], rules.Event{Kind: rules.EventSettle, Result: e.CallResult}, true)
		if how == alive {
			require.NoError(m.t, err)
			require.NoError(m.t, results[order[i]].Err)
			require.Equal(m.t, d.Stale, results[order[i]].Stale)
			require.Equal(m.t, m.rows[e.Key].State, results[order[i]].State)
		}
	}
}

// settleTwice takes the row as it is: several ends of one effect in one call. At most one of them has
// the epoch of the row.
func (m *model) settleTwice(l *Ledger, first, second End) {
	m.log = append(m.log, fmt.Sprint("twice ", first.Key.text(), " ", first.Epoch, " ", second.Epoch))
	row := m.rows[first.Key]
	x := mustExplain(m.t, l, first.Key)
	require.LessOrEqual(m.t, x.Row.Epoch, max(row.Epoch, 1))
	m.rows[first.Key] = x.Row
	if x.Row.State.Settled() && !row.State.Settled() {
		m.settled(first.Key, x.Row)
	}
	delete(m.due, first.Key)
	if at, ok := m.look(l).due[first.Key]; ok {
		m.due[first.Key] = at
	}
	for _, a := range x.Calls {
		c := rowCall{first.Key, a.Epoch}
		if a.Late {
			m.late[c] = a.Outcome
		} else if !a.Open() {
			m.ended[c] = a.Outcome
		}
	}
}
