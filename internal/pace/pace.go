// Package pace has an action of an operator change many things at a rate.
package pace

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Pace is the largest rate of steps. The zero value is none. It is not safe for concurrent use.
type Pace struct {
	perSecond float64
	next      time.Time // when the rate allows the next step
}

// Parse reads the field rate of an action, such as 5/s, or 5, which is the same. An empty text is no rate.
func Parse(text string) (Pace, error) {
	if text == "" {
		return Pace{}, nil
	}
	number, unit, seconds := text, "s", map[string]float64{"s": 1, "m": 60, "h": 3600}
	if i := len(text) - 2; i > 0 && text[i] == '/' {
		number, unit = text[:i], text[i+1:]
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || seconds[unit] == 0 || !(n > 0) || n > 1e6 {
		return Pace{}, &operate.InputError{Field: "rate", Problem: fmt.Sprintf("--rate must be a number per second, minute or hour, such as 5/s, 30/m or 100/h, got %q", text)}
	}
	return Pace{perSecond: n / seconds[unit]}, nil
}

// Wait waits until the rate allows the next step. The error is that of the context.
func (p *Pace) Wait(ctx context.Context) error {
	if p.perSecond <= 0 {
		return ctx.Err()
	}
	if !loop.Sleep(ctx, time.Until(p.next)) {
		return ctx.Err()
	}
	p.next = time.Now().Add(time.Duration(float64(time.Second) / p.perSecond))
	return nil
}
