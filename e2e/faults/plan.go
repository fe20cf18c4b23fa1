package faults

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/internal/failpoint"
)

// Arm is a failpoint that one process is set to.
type Arm struct {
	Instance int // which of the three
	Point    failpoint.Point
	Nth      int
}

// Case is one fault with its numbers.
type Case struct {
	Fault
	Seed    uint64 // of the plan
	Kind    string // POINT, VOUCHER or Effect
	Targets int
	At      int // percent of the campaign that is settled when the fault comes
	Victim  int // which of the three instances, where it is one
	Arms    []Arm
	Draw    uint64 // for everything else that the case draws
}

// String is the case on one line; the same seed always gives the same lines.
func (c Case) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s seed=%d %s targets=%d at=%d%% victim=%d", c.Name, c.Seed, c.Kind, c.Targets, c.At, c.Victim)
	for _, a := range c.Arms {
		fmt.Fprintf(&b, " %d:%s:%d", a.Instance, a.Point, a.Nth)
	}
	return b.String()
}

// Instances is how many processes share the work of a case.
const Instances = 3

// Plan returns a matrix as seed tries it: which numbers every fault gets, and in which order. The
// groups take turns, so that any beginning of the plan has some of each. It depends on the seed
// alone.
func Plan(seed uint64, matrix []Fault) []Case {
	order := source(seed, "order")
	groups := map[string][]Case{}
	var names []string
	for _, f := range matrix {
		if groups[f.Group] == nil {
			names = append(names, f.Group)
		}
		groups[f.Group] = append(groups[f.Group], draw(f, seed))
	}
	order.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		cases := groups[name]
		order.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	}
	var plan []Case
	for len(names) > 0 {
		names = slices.DeleteFunc(names, func(name string) bool {
			plan = append(plan, groups[name][0])
			groups[name] = groups[name][1:]
			return len(groups[name]) == 0
		})
	}
	return plan
}

// draw gives a fault its numbers. Every fault has a source of its own, so that a new line of the
// matrix changes no other.
func draw(f Fault, seed uint64) Case {
	r := source(seed, f.Name)
	types := promotiontype.Names()
	c := Case{
		Fault: f, Seed: seed, Kind: types[r.IntN(len(types))],
		Targets: 300 + 100*r.IntN(6), At: 10 + r.IntN(50), Victim: r.IntN(Instances),
	}
	if f.Of != "" {
		c.Kind = f.Of
	}
	points := slices.Clone(f.Points)
	if f.Pair {
		r.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
		points = points[:2]
	}
	for i, p := range points {
		c.Arms = append(c.Arms, Arm{Instance: (c.Victim + i) % Instances, Point: p, Nth: nth(p, r)})
	}
	c.Draw = r.Uint64()
	return c
}

// seldom says whether a point is passed so seldom that a case must bring it about.
func seldom(p failpoint.Point) bool {
	return p == failpoint.CleanUp || p == failpoint.Reclaim || p == failpoint.FeederBatch || p == failpoint.Drain
}

// nth draws at which reach a process is lost: early enough that every instance gets there.
func nth(p failpoint.Point, r *rand.Rand) int {
	switch {
	case seldom(p):
		return 1
	case slices.Contains([]failpoint.Point{failpoint.BeforeInsert, failpoint.AfterInsert, failpoint.AfterXADD, failpoint.AfterRead, failpoint.BeforeXACK}, p):
		return 1 + r.IntN(5) // a batch at a time
	default:
		return 1 + r.IntN(40)
	}
}

// source is the stream of random numbers of one purpose.
func source(seed uint64, purpose string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(purpose))
	return rand.New(rand.NewPCG(seed, h.Sum64())) //nolint:gosec // a plan must repeat
}
