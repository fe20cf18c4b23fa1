package app

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progressEvery is how often a line is written where no person can see a bar move.
const progressEvery = 3 * time.Second

// Progress shows how far a long work is: a bar on a terminal, otherwise a line every few seconds. It
// owns no goroutine: what is shown moves when Set or Add is called. Safe for concurrent use.
type Progress struct {
	mu    sync.Mutex
	bar   *progressbar.ProgressBar // nil: lines
	w     io.Writer
	label string
	total int64
	done  int64
	next  time.Time
	ended bool
}

// Progress begins to show a work of total steps, on Err.
func (h *Host) Progress(total int64, label string) *Progress {
	return newProgress(h.o.Stderr, isTerminal(h.o.Stderr), total, label)
}

func newProgress(w io.Writer, terminal bool, total int64, label string) *Progress {
	p := &Progress{w: w, label: label, total: max(total, 0), next: time.Now().Add(progressEvery)}
	if terminal {
		p.bar = progressbar.NewOptions64(p.total,
			progressbar.OptionSetWriter(w),
			progressbar.OptionSetDescription(label),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(),
			progressbar.OptionSetItsString(""), // the label says of what
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionFullWidth(),
			progressbar.OptionThrottle(100*time.Millisecond),
		)
	}
	return p
}

// Add tells of n more steps.
func (p *Progress) Add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.move(p.done + n)
}

// Set tells how many steps are done.
func (p *Progress) Set(done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.move(done)
}

// Done ends the showing, complete or not. Calls after it change nothing.
func (p *Progress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.ended = true
	if p.bar == nil {
		p.line()
		return
	}
	_ = p.bar.Exit() // it only writes to the terminal
	fmt.Fprintln(p.w)
}

func (p *Progress) move(done int64) {
	if p.ended {
		return
	}
	p.done = min(max(done, 0), p.total)
	if p.bar != nil {
		_ = p.bar.Set64(p.done) // it only writes to the terminal
		return
	}
	if now := time.Now(); !now.Before(p.next) {
		p.next = now.Add(progressEvery)
		p.line()
	}
}

func (p *Progress) line() {
	percent := int64(100)
	if p.total > 0 {
		percent = p.done * 100 / p.total
	}
	fmt.Fprintf(p.w, "%s: %d of %d (%d %%)\n", p.label, p.done, p.total, percent)
}
