package console

import (
	"strconv"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

const (
	rateWindow = 15 * time.Second // a rate is over this time at most
	rateLeast  = time.Second      // and over this time at least; it is how old a reading of the home page may be
)

// rates are the messages per second that this instance acknowledges, by route. Nothing is read while
// nobody looks, so a rate is known from the second look on. The zero value is ready.
type rates struct {
	mu      sync.Mutex
	samples []sample // the oldest first
}

// sample has the counters of one moment, by route.
type sample struct {
	at    time.Time
	acked map[string]uint64
}

// of returns the rates of routes at now. A route that has none is not known yet.
func (r *rates) of(tellers []operate.WorkTeller, routes []string, now time.Time) map[string]float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.samples) > 0 && now.Sub(r.samples[0].at) > rateWindow {
		r.samples = r.samples[1:]
	}
	latest := sample{now, map[string]uint64{}}
	for _, t := range tellers {
		for _, route := range routes {
			latest.acked[route] += t.Work(route).Acked
		}
	}
	perSecond := map[string]float64{}
	if len(r.samples) > 0 && now.Sub(r.samples[0].at) >= rateLeast {
		first := r.samples[0]
		for route, n := range latest.acked {
			perSecond[route] = float64(n-first.acked[route]) / now.Sub(first.at).Seconds()
		}
	}
	if n := len(r.samples); n == 0 || now.Sub(r.samples[n-1].at) >= rateLeast {
		r.samples = append(r.samples, latest)
	}
	return perSecond
}

// rateCell shows one of rates.
func rateCell(perSecond map[string]float64, route string) console.Cell {
	rate, known := perSecond[route]
	if !known {
		return console.Number(nil)
	}
	cell := console.Count(int64(rate + 0.5))
	if rate > 0 && rate < 10 {
		cell.Text = strconv.FormatFloat(rate, 'f', 1, 64)
	}
	cell.Data = rate
	return cell
}
