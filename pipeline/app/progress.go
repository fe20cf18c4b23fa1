package app

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	progressEvery = 3 * time.Second        // between two lines without a terminal
	drawEvery     = 100 * time.Millisecond // between two drawings of the bar
	rateAfter     = time.Second            // the rate is shown from then on
	barWidth      = 30                     // at most, in columns
	longestLeft   = 999 * time.Hour        // a longer estimate is shown as this
)

// Progress shows how far a long task is: a bar on a terminal, otherwise a line every few seconds.
// It has no goroutine; Set draws. Safe for concurrent use.
type Progress struct {
	mu            sync.Mutex
	w             io.Writer
	columns       func() int // width of the terminal, 0 if it is unknown; nil: lines
	label         string
	total, done   int64
	started, next time.Time
	ended         bool
}

// Progress starts to show a task of total steps, on Err. A task of none is not shown.
func (h *Host) Progress(total int64, label string) *Progress {
	var columns func() int
	if f, ok := h.opts.Stderr.(*os.File); ok && isTerminal(f) {
		columns = func() int {
			width, _, _ := term.GetSize(int(f.Fd())) //nolint:gosec // a file descriptor is small
			return width
		}
	}
	return newProgress(h.opts.Stderr, columns, total, label)
}

func newProgress(w io.Writer, columns func() int, total int64, label string) *Progress {
	p := &Progress{w: w, columns: columns, label: label, total: total, started: time.Now(), ended: total <= 0}
	if columns == nil {
		p.next = p.started.Add(progressEvery)
	}
	return p
}

// Set reports how many steps are done.
func (p *Progress) Set(done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	p.done = min(max(done, 0), p.total)
	now := time.Now()
	switch {
	case now.Before(p.next):
	case p.columns != nil:
		p.next = now.Add(drawEvery)
		p.draw()
	case p.done < p.total: // Done writes the last line
		p.next = now.Add(progressEvery)
		p.line()
	}
}

// Done ends the display, complete or not. Later calls change nothing.
func (p *Progress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
	case p.columns == nil:
		p.line()
	default:
		p.draw()
		fmt.Fprintln(p.w)
	}
	p.ended = true
}

func (p *Progress) percent() int { return int(p.done * 100 / p.total) }

func (p *Progress) line() {
	fmt.Fprintf(p.w, "%s: %d of %d (%d %%)\n", p.label, p.done, p.total, p.percent())
}

// draw replaces the line of the bar. The line is shorter than the terminal, so that it never wraps:
// a detail that does not fit is left out. schollz/progressbar v3.19 wraps at 40 columns, and writes
// no lines without a terminal.
func (p *Progress) draw() {
	columns := p.columns()
	if columns <= 0 {
		columns = 80
	}
	line := fmt.Sprintf("%s %3d %% ", p.label, p.percent())
	details := []string{fmt.Sprintf("%d/%d", p.done, p.total)}
	if elapsed := time.Since(p.started); elapsed >= rateAfter && p.done > 0 {
		details = append(details, fmt.Sprintf("%.0f/s", float64(p.done)/elapsed.Seconds()))
		if p.done < p.total {
			left := float64(elapsed) / float64(p.done) * float64(p.total-p.done)
			details = append(details, time.Duration(min(left, float64(longestLeft))).Round(time.Second).String()+" left")
		}
	}
	room := columns - 1 - utf8.RuneCountInString(line)
	for len(details) > 0 && len(strings.Join(details, ", ")) > room {
		details = details[1:] // the time left is the last one
	}
	tail := strings.Join(details, ", ")
	if width := min(barWidth, room-len(tail)-3); width >= 5 {
		full := p.percent() * width / 100
		line += "[" + strings.Repeat("=", full) + strings.Repeat(" ", width-full) + "] "
	}
	text := []rune(line + tail)
	fmt.Fprintf(p.w, "\r\x1b[K%s", string(text[:min(len(text), columns-1)]))
}
