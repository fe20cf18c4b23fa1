package room

import (
	"math"
	"slices"
)

const (
	parts     = 10  // of the time of a lease, in Table.Flow
	cells     = 120 // of the same, in a forecast
	lives     = 6   // forecast leases follow each other so often; afterwards the mean rate counts
	deviation = 1.0 // standard deviations, of two ranges that add up: of the ends, and of what is known of them
	belief    = 30  // seconds: the weight of the mean where few leases have been seen
)

// WaitSeconds returns the range of the expected wait of a user with that many users ahead. It is nil
// while the queue does not move, and when the seats may be sold before the user's turn.
//
// A user is promoted when so many slots have become free. When they do is forecast from the ends of
// the leases, which free a slot at the latest, and from how early users ended theirs so far. So many
// promotions at once into free slots are no rate.
func (t *Table) WaitSeconds(ahead int64) *[2]int64 {
	if t.Halted() != "" || t.TokenTime <= 0 || len(t.Flow) != 2*parts+2 || t.beyond(ahead) {
		return nil
	}
	low, high := 0.0, 0.0
	if slots := float64(ahead + 1 - t.Free); slots > 0 {
		var f forecast
		if t.forecast != nil {
			f = t.forecast()
		} else {
			f = newForecast(t)
		}
		noise := deviation * math.Sqrt(f.spread*slots)
		low, high = f.soon.until(slots-noise), f.late.until(slots+noise)
	}
	if t.PerMinute > 0 {
		limit := float64(ahead+1) * 60 / float64(t.PerMinute)
		low, high = max(low, 0.9*limit), max(high, 1.1*limit)
	}
	if math.IsInf(high, 1) {
		return nil
	}
	return &[2]int64{int64(0.97 * low), int64(math.Ceil(1.03*high)) + 2} // the promotion takes a tick
}

// beyond reports whether more users are ahead than there are seats for: then nobody knows whether
// enough of them come back. Of the users in front, as large a share buys as so far.
func (t *Table) beyond(ahead int64) bool {
	buys := (t.Flow[2*parts] + 3) / (t.Flow[2*parts+1] + 3)
	seats := float64(t.Capacity-t.Sold-t.Ready-t.Admitted) + (1-buys)*float64(t.Ready+t.Admitted)
	return float64(ahead+1)*buys > max(seats, float64(t.Free))
}

// forecast is how many slots become free.
type forecast struct {
	soon, late curve
	spread     float64 // variance of the time that a slot is kept, in units of the square of its mean
}

// curve is how many slots have become free after each step of a number of seconds.
type curve struct {
	step  float64
	freed []float64
}

// newForecast returns the forecast for the users of a table. The ends so far are a sample: soon and
// late are the bounds of what they show, and parts without leases so far may end at once.
func newForecast(t *Table) forecast {
	ended := 0.0
	for i := range parts {
		ended += t.Flow[i]
	}
	unsure := deviation / math.Sqrt(ended+1)
	f := forecast{
		soon: t.curve(1+unsure, 1),
		late: t.curve(max(0, 1-unsure), 0),
	}
	stays, mean, square, step := 1.0, 0.0, 0.0, float64(t.TokenTime)/1000/parts
	for i, rate := range t.rates() {
		next := stays * math.Exp(-rate*step)
		mean += step * (stays + next) / 2
		square += 2 * step * (float64(i) + 0.5) * step * (stays + next) / 2
		stays = next
	}
	f.spread = max(0, square/(mean*mean)-1)
	return f
}

// rates returns for each part of the time of a lease how often leases end in it, per second. Where
// few have been seen, the mean of all parts counts.
func (t *Table) rates() (list [parts]float64) {
	ended, inside := 0.0, 0.0
	for i := range parts {
		ended, inside = ended+t.Flow[i], inside+t.Flow[parts+i]
	}
	mean := ended / max(1, inside)
	for i := range list {
		list[i] = (t.Flow[i] + mean*belief) / (t.Flow[parts+i] + belief)
	}
	return list
}

// curve lets the leases end at the rates that were seen, times a factor, or else at the end of their
// time. The next user follows in each free slot. unseen is how many more ends count in each part of
// the time: much where few leases have been seen, and next to nothing elsewhere. An extended lease, of
// which more than the usual time is left, ends early as often as one that has just begun.
func (t *Table) curve(factor, unseen float64) curve {
	c := curve{step: float64(t.TokenTime) / 1000 / cells}
	var ends [cells]float64 // by the time that is left
	for i, rate := range t.rates() {
		rate = rate*factor + unseen/(t.Flow[parts+i]+belief)
		for k := range cells / parts {
			ends[cells-1-i*cells/parts-k] = 1 - math.Exp(-rate*c.step)
		}
	}
	cell := func(remaining int64) int64 { return min(lives*cells, max(0, (remaining-1)*cells/t.TokenTime)) }
	longest := int64(cells - 1) // of an extended lease, it is more
	for _, remaining := range t.Ends {
		longest = max(longest, cell(remaining))
	}
	leases := make([]float64, longest+1) // by the time that is left
	weight := float64(t.Ready+t.Admitted) / max(1, float64(len(t.Ends)))
	fresh := float64(t.Ready)
	for _, remaining := range slices.Backward(t.Ends) {
		if fresh > 0 && remaining <= t.ReadyTime && remaining > t.ReadyTime-3000 { // it is claimed next
			remaining, fresh = t.TokenTime, fresh-weight
		}
		leases[cell(remaining)] += weight
	}
	sum, first := 0.0, 0 // the cell with the least time left moves, instead of the leases
	for range lives * cells {
		freed := 0.0
		for remaining := range leases {
			lease := &leases[(first+remaining)%len(leases)]
			gone := *lease
			if remaining > 0 {
				gone *= ends[min(remaining, cells-1)]
			}
			*lease -= gone
			freed += gone
		}
		first = (first + 1) % len(leases)
		leases[(first+cells-1)%len(leases)] += freed
		sum += freed
		c.freed = append(c.freed, sum)
	}
	return c
}

// until returns the seconds after which so many slots have become free.
func (c curve) until(slots float64) float64 {
	last := c.freed[len(c.freed)-1]
	switch {
	case slots <= 0:
		return 0
	case last <= 0:
		return math.Inf(1)
	case slots > last: // at the rate of the last lives
		return c.step * float64(len(c.freed)) * slots / last
	}
	i, _ := slices.BinarySearch(c.freed, slots)
	before := 0.0
	if i > 0 {
		before = c.freed[i-1]
	}
	return c.step * (float64(i) + (slots-before)/max(1e-9, c.freed[i]-before))
}
