package promotion

import (
	"context"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/console"
)

const (
	// pacing is how many times as long as a read took its answer is shown. A page that somebody looks at then uses
	// the database for a twentieth of the time, also for a campaign of millions whose payouts must be counted.
	pacing = 20
	// pacedAnswers is the number of addresses whose answers are kept.
	pacedAnswers = 32
)

// paced is the Load of a panel that reads the ledger.
type paced struct {
	load func(context.Context, console.Query) (console.Block, error)

	mu      sync.Mutex
	answers map[string]pacedAnswer // by what the address names
}

type pacedAnswer struct {
	block console.Block
	at    time.Time
	took  time.Duration
}

// pace returns a Load that reads again when a read may be repeated. key is the name of the value in the address that says
// what is read. An error is not kept.
func pace(key string, load func(context.Context, console.Query) (console.Block, error)) func(context.Context, console.Query) (console.Block, error) {
	p := &paced{load: load, answers: map[string]pacedAnswer{}}
	return func(ctx context.Context, q console.Query) (console.Block, error) { return p.read(ctx, q, q.Text(key)) }
}

func (p *paced) read(ctx context.Context, q console.Query, of string) (console.Block, error) {
	p.mu.Lock()
	last, known := p.answers[of]
	p.mu.Unlock()
	if age := time.Since(last.at); known && age < pacing*last.took {
		if age < time.Second {
			return last.block, nil
		}
		return console.Blocks{last.block, console.Text("These are the numbers of " + console.Short(age) + " ago, because to read them takes " + last.took.Round(time.Millisecond).String() + ".")}, nil
	}
	began := time.Now()
	block, err := p.load(ctx, q)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.answers) >= pacedAnswers {
		clear(p.answers)
	}
	p.answers[of] = pacedAnswer{block, time.Now(), time.Since(began)}
	return block, nil
}
