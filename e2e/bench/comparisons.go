package main

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/e2e/services/servers"
)

// row is one line of the table.
type row struct {
	key     string
	what    string
	against string // the peer, or –
	unit    string // × for a ratio
	goal    float64
	atMost  bool   // the figure must not exceed the goal; otherwise it must reach it
	why     string // why it falls short, if it does
}

// pair is one measurement of a row: the product's figure and its peer's in the same run. Without a
// peer the latter is 0.
type pair struct{ ours, peer float64 }

func (p pair) figure() float64 {
	if p.peer == 0 {
		return p.ours
	}
	return p.ours / p.peer
}

// comparison measures one or more rows together.
type comparison struct {
	name    string
	runs    int
	rows    []row
	measure func(ctx context.Context, e *environment, s sizes) (map[string]pair, error)
}

func (c comparison) keys() []string {
	keys := make([]string, len(c.rows))
	for i, r := range c.rows {
		keys[i] = r.key
	}
	return keys
}

// sizes are the counts of the comparisons.
type sizes struct {
	campaign int // targets of a campaign
}

func full() sizes {
	return sizes{campaign: 100_000}
}

func quick() sizes {
	return sizes{campaign: 1_000}
}

const bareLoopPeer = "bare loop"

// comparisons returns all comparisons in the order of the table.
func comparisons() []comparison {
	return []comparison{
		{"path", 3, []row{
			{key: "own-cpu", what: "complete path, 32 slots: own CPU per payout", against: bareLoopPeer, unit: "×", goal: 1.5, atMost: true},
			{key: "rate", what: "complete path, default slots: payouts/s", against: bareLoopPeer, unit: "×", goal: 0.6},
			{key: "postgres-cpu", what: "complete path, 32 slots: PostgreSQL CPU per payout", against: bareLoopPeer, unit: "×", goal: 2, atMost: true},
		}, comparePath},
	}
}

// compare runs a comparison several times. Each run measures both sides.
func (e *environment) compare(ctx context.Context, c comparison, s sizes, runs int) outcome {
	o := outcome{comparison: c, pairs: map[string][]pair{}}
	for i := range runs {
		began := time.Now()
		fmt.Fprintf(e.log, "\n%s, run %d of %d\n", c.name, i+1, runs)
		pairs, err := c.measure(ctx, e, s)
		if err != nil {
			o.err = fmt.Errorf("%s: %w", c.name, err)
			fmt.Fprintf(e.log, "  %v\n", o.err)
			return o
		}
		for _, r := range c.rows {
			p, ok := pairs[r.key]
			if !ok {
				o.err = fmt.Errorf("%s: the run has no figure for %s", c.name, r.key)
				return o
			}
			o.pairs[r.key] = append(o.pairs[r.key], p)
			fmt.Fprintf(e.log, "  %s: %s\n", r.key, o.lines(r)[0])
		}
		fmt.Fprintf(e.log, "  took %s\n", time.Since(began).Round(time.Second))
	}
	return o
}

// campaign runs one campaign and prints its result.
func (e *environment) campaign(ctx context.Context, label string, c campaign) (result, error) {
	res, err := e.pay(ctx, c)
	if err != nil {
		return res, fmt.Errorf("%s: %w", label, err)
	}
	fmt.Fprintf(e.log, "  %s: %s\n", label, res)
	return res, nil
}

func comparePath(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	bare, err := e.campaign(ctx, bareLoopPeer, campaign{targets: s.campaign, peer: "bare"})
	if err != nil {
		return nil, err
	}
	slots32, err := e.campaign(ctx, "32 slots", campaign{targets: s.campaign, slots: 32})
	if err != nil {
		return nil, err
	}
	standard, err := e.campaign(ctx, "default slots", campaign{targets: s.campaign})
	if err != nil {
		return nil, err
	}
	return map[string]pair{
		"own-cpu":      {micros(slots32.CPU["own"]), micros(bare.CPU["own"])},
		"rate":         {standard.Rate, bare.Rate},
		"postgres-cpu": {micros(slots32.CPU[servers.Postgres]), micros(bare.CPU[servers.Postgres])},
	}, nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
