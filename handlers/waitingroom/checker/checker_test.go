package checker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

const ttl = 10 * time.Second

// run is a room with two seats and one slot: a buys, b abandons, c waits until the end.
type run struct {
	*Checker
	last room.Status
}

func newRun() *run {
	c := New(Options{TokenTTL: ttl})
	for i, name := range []string{"a", "b", "c"} {
		c.Arrived(name, []Habit{HasTwoTabs, Abandons, Buys}[i])
		c.Connected(name, "1", int64(i+1))
		c.Position(name, "1", int64(i), 1000)
	}
	c.Sample(room.Status{Capacity: 2, Concurrency: 1, Admitted: 1})
	c.Promoted("a", "1-a", 2000+ttl.Milliseconds())
	c.Promoted("a", "1-a", 2500+ttl.Milliseconds())
	c.Shop("a", Sold)
	c.Replayed("a", false)
	c.Ended("a", "sold")
	c.Position("b", "1", 0, 3000)
	c.Position("c", "1", 1, 3000)
	c.Promoted("b", "2-b", 4000+ttl.Milliseconds())
	c.Shop("b", Abandoned)
	c.Ended("b", "abandoned")
	c.Connected("c", "2", 3)
	c.Position("c", "2", 0, 5000)
	c.Closed()
	c.Ended("c", "room_closed")
	return &run{c, room.Status{Capacity: 2, Concurrency: 1, Sold: 1, Free: 1, Promoted: 2}}
}

func TestAGoodRun(t *testing.T) {
	t.Parallel()
	r := newRun()
	got := r.Report(r.last)
	require.True(t, got.OK(), "%+v", got)
	require.Equal(t, Report{
		Users: 3, Promoted: 2, Sold: 1, Abandoned: 1, Unserved: 1, Reconnects: 1, Replays: 1, Samples: 1, Capacity: 2, Problems: []string{},
	}, got)
}

// A sample that was read before the end of a lease is checked after it.
func TestASampleMayBeOlderThanAnEnd(t *testing.T) {
	t.Parallel()
	r := newRun()
	r.Promoted("d", "4-d", 5000)
	r.Ended("d", "lease_over")
	r.Sample(room.Status{LastTick: 4999, Concurrency: -1})
	r.Sample(room.Status{LastTick: 5000, Concurrency: -1})
	require.NotContains(t, fmt.Sprint(r.report.Problems), "before its time")
	r.Promoted("d", "4-d", 9000)
	r.Ended("d", "lease_over")
	r.Sample(room.Status{LastTick: 8999, Concurrency: -1})
	r.Sample(room.Status{LastTick: 8999, Concurrency: -1})
	require.Contains(t, fmt.Sprint(r.report.Problems), "the lease of d has ended before its time")
}

func overtaken(r *run) {
	r.Arrived("e", Expires)
	r.Connected("d", "1", 4)
	r.Connected("e", "1", 5)
	r.Promoted("e", "5-e", 6000+ttl.Milliseconds())
	r.Position("d", "1", 0, 6000)
	r.Position("d", "1", 0, 8000)
	r.Ended("d", "room_closed")
	r.Ended("e", "lease_over")
	r.last.LastTick, r.last.Promoted = 6000+ttl.Milliseconds(), 3
}

// drawn is a draw in which b and c have the places 1 and 2. index is the one that c has received.
func drawn(r *run, index int64) {
	r.Connected("b", "1", 7)
	r.Connected("c", "2", index)
	r.Drawn(map[string]int{"b": 1, "c": 2})
}

func TestADraw(t *testing.T) {
	t.Parallel()
	r := newRun()
	drawn(r, 8)
	require.Empty(t, r.Report(r.last).Problems)
}

// A user whose sign of life did not arrive may be overtaken.
func TestAnAbsentUser(t *testing.T) {
	t.Parallel()
	r := newRun()
	r.opts.Absence = time.Second
	overtaken(r)
	require.Empty(t, r.Report(r.last).Problems)
}

// A promotion that was lost before its user was notified is repeated.
func TestALostPromotion(t *testing.T) {
	t.Parallel()
	r := newRun()
	r.Lost(6000)
	overtaken(r)
	require.Empty(t, r.Report(r.last).Problems)
}

// A user who enters again after Redis has lost the place has another index for a moment.
func TestALostPlaceIsRestored(t *testing.T) {
	t.Parallel()
	for indexes, ok := range map[[2]int64]bool{{9, 3}: true, {9, 4}: false, {2, 3}: false, {9, 9}: false} {
		r := newRun()
		r.opts.Restores = true
		for i, index := range indexes {
			r.Connected("c", fmt.Sprint("connection ", 3+i), index)
		}
		require.Equal(t, ok, r.Report(r.last).OK(), "%v", indexes)
	}
}

// twoEnds has a user with two tabs whose sale is known in one of them. The other one has the lease
// until the end of its time. The shop has sent the sale at 4000.
func twoEnds(r *run, lost int64) {
	r.opts.Loses = true
	r.Sends("a", 4000)
	r.Lost(lost)
	r.Ended("a", "lease_over")
}

// A sale that was lost is not known in the second tab of its user.
func TestALostSale(t *testing.T) {
	t.Parallel()
	r := newRun()
	twoEnds(r, 5000)
	require.Empty(t, r.Report(r.last).Problems)
}

// The history of a user has all that the user has received.
func TestHistories(t *testing.T) {
	t.Parallel()
	r := newRun()
	r.Sends("c", 1)
	r.Sends("c", 2)
	got := r.Histories([]string{"c was overtaken by a", "c has two ends: sold, then left"})
	require.Equal(t, 2, strings.Count(got, "---"), got)
	for _, want := range []string{
		"--- c, habit buys, index 3\n", " 1 has the index 3\n", " 1: 2 positions until ", ", 2 users ahead, then 1. The last one is of 00:00:03.000\n",
		" the stream ends: room_closed\n", " the shop sends the result, 2 times until ", "--- a, habit has two tabs, index 1\n",
		" has received the lease 1-a, which was claimed at 00:00:02.000\n", " the shop: sold\n",
	} {
		require.Contains(t, got, want)
	}
	require.Empty(t, r.Histories([]string{"1 slots are not free again"}))
}

// Each broken rule has its problem.
func TestEachBrokenRuleIsReported(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*run){
		"d was overtaken by e": overtaken,
		"d has lost the place: lease_over": func(r *run) { // it buys
			r.Connected("d", "1", 4)
			r.Promoted("d", "4-d", 5000)
			r.Ended("d", "lease_over")
			r.Sample(room.Status{LastTick: 5000})
		},
		"the lease of d has ended before its time": func(r *run) {
			r.Promoted("d", "4-d", 5000)
			r.Promoted("d", "4-d", 6000)
			r.Shop("d", Refused)
			r.Sample(room.Status{LastTick: 5999})
		},
		"c has lost the place: left":                                        func(r *run) { r.users["c"].end = "left" },
		"3 users were promoted, and 2 were notified":                        func(r *run) { r.last.Promoted = 3 },
		"a has two places: 1, then 9":                                       func(r *run) { r.Connected("a", "2", 9) },
		"c was shown 0 users ahead, then 2":                                 func(r *run) { r.Position("c", "2", 2, 6000) },
		"a has three places: 1, 9, then 8":                                  func(r *run) { r.Connected("a", "2", 9); r.Connected("a", "2", 8) },
		"c has the index 9, and the drawn one is 8":                         func(r *run) { drawn(r, 9) },
		"a and b have the lease 1-a":                                        func(r *run) { r.Promoted("b", "1-a", 0) },
		"d has two leases: 4-d, then 4-e":                                   func(r *run) { r.Promoted("d", "4-d", 1); r.Promoted("d", "4-e", 1); r.Ended("d", "lease_over") },
		"a has bought twice":                                                func(r *run) { r.Shop("a", Sold) },
		"a second session was accepted":                                     func(r *run) { r.Replayed("a", true) },
		"c has two ends: room_closed, then left":                            func(r *run) { r.Ended("c", "left") },
		"a has two ends: sold, then lease_over":                             func(r *run) { twoEnds(r, 3999) }, // the sale was not lost
		"1 users were promoted while the capacity is unknown":               func(r *run) { r.Sample(room.Status{Capacity: -1, Ready: 1}) },
		"1 sold and 2 leases are more than 2 seats":                         func(r *run) { r.Sample(room.Status{Capacity: 2, Concurrency: -1, Sold: 1, Ready: 1, Admitted: 1}) },
		"2 leases are more than 1":                                          func(r *run) { r.Sample(room.Status{Capacity: 9, Concurrency: 1, Ready: 1, Admitted: 1}) },
		"the shop has sold 1 seats, and the room counts 2":                  func(r *run) { r.last.Sold, r.last.Free = 2, 0 },
		"1 slots are not free again":                                        func(r *run) { r.last.Ready = 1 },
		"0 slots are free, and 1 should be":                                 func(r *run) { r.last.Free = 0 },
		"4 users still wait":                                                func(r *run) { r.last.Waiting = 4 },
		"d was promoted or waited, and has no end":                          func(r *run) { r.Connected("d", "1", 4) },
		"d has lost the place: grace":                                       func(r *run) { r.Connected("d", "1", 4); r.Ended("d", "grace") },
		"b was abandoned in the shop, and the stream ended with lease_over": func(r *run) { r.users["b"].end = "lease_over" },
	} {
		r := newRun()
		change(r)
		got := r.Report(r.last)
		require.False(t, got.OK(), want)
		require.Contains(t, fmt.Sprint(got.Problems), want)
	}
}
