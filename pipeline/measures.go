package pipeline

// RouteMeasures is what the metrics of one process have of a route, since the process started.
type RouteMeasures struct {
	Outcomes []Outcome
	// Durations are the seconds from receiving a message to its ack or nack.
	Durations Distribution
	// Batches are the messages of each call for a batch. Empty for a route without batches.
	Batches Distribution
}

// Outcome says how many messages ended in one way.
type Outcome struct {
	Outcome  string // acked, retried, dead, dropped or nacked
	Class    string // of the error; empty when acked
	Messages uint64
}

// Distribution says how often a measured value was at most each of some bounds.
type Distribution struct {
	Count  uint64
	Sum    float64
	Bounds []float64 // rising
	AtMost []uint64  // for each bound, the values up to it
}

// Mean returns the mean of all values, and 0 without any.
func (d Distribution) Mean() float64 {
	if d.Count == 0 {
		return 0
	}
	return d.Sum / float64(d.Count)
}

// Quantile returns the value that a share of all values is not above, such as 0.99. It is exact only where a bound is, and
// between two bounds it assumes that the values are spread evenly, as Prometheus does. beyond says that it is above the
// last bound, which is then returned. Without any value it is 0.
func (d Distribution) Quantile(share float64) (value float64, beyond bool) {
	if d.Count == 0 || len(d.Bounds) == 0 {
		return 0, false
	}
	rank := share * float64(d.Count)
	lower, below := 0.0, 0.0
	for i, bound := range d.Bounds {
		upTo := float64(d.AtMost[i])
		if upTo >= rank && upTo > below {
			return lower + (bound-lower)*(rank-below)/(upTo-below), false
		}
		lower, below = bound, upTo
	}
	return lower, true
}
