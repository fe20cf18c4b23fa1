package checker

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// entry is one line of a history. Positions of one connection share a line, and so do repetitions.
type entry struct {
	at   time.Time
	text string

	connection string // of the positions; empty: the line is text
	count      int
	first      int64 // users ahead
	last       int64
	asOf       int64 // of the last position
	until      time.Time
}

const clock = "15:04:05.000"

func (e *entry) String() string {
	switch {
	case e.connection == "" && e.count == 1:
		return e.at.UTC().Format(clock) + " " + e.text
	case e.connection == "":
		return fmt.Sprintf("%s %s, %d times until %s", e.at.UTC().Format(clock), e.text, e.count, e.until.UTC().Format(clock))
	}
	return fmt.Sprintf("%s %s: %d positions until %s, %d users ahead, then %d. The last one is of %s", e.at.UTC().Format(clock),
		e.connection, e.count, e.until.UTC().Format(clock), e.first, e.last, time.UnixMilli(e.asOf).UTC().Format(clock))
}

// note adds a line to the history of a user.
func (u *user) note(format string, args ...any) {
	text, now := fmt.Sprintf(format, args...), time.Now()
	if n := len(u.history); n > 0 && u.history[n-1].text == text {
		e := u.history[n-1]
		e.count, e.until = e.count+1, now
		return
	}
	u.history = append(u.history, &entry{at: now, text: text, count: 1})
}

// noted adds a position to the history of a user.
func (u *user) noted(connection string, ahead, asOf int64) {
	var e *entry
	for i := len(u.history) - 1; i >= 0 && e == nil; i-- {
		if u.history[i].connection == connection {
			e = u.history[i]
		}
	}
	now := time.Now()
	if e == nil {
		e = &entry{at: now, connection: connection, first: ahead}
		u.history = append(u.history, e)
	}
	e.count, e.last, e.asOf, e.until = e.count+1, ahead, asOf, now
}

var word = regexp.MustCompile(`[^\s,:]+`)

// Histories returns all that happened to the users whose names are in the problems, with the time
// of this machine.
func (c *Checker) Histories(problems []string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	shown := map[string]bool{}
	for _, name := range word.FindAllString(strings.Join(problems, "\n"), -1) {
		u := c.users[name]
		if u == nil || shown[name] {
			continue
		}
		shown[name] = true
		fmt.Fprintf(&b, "--- %s, habit %s, index %d\n", name, u.habit, u.index)
		for _, e := range u.history {
			fmt.Fprintln(&b, e)
		}
	}
	return b.String()
}

// String returns the name of a habit.
func (h Habit) String() string {
	return [...]string{"buys", "abandons", "expires", "leaves", "vanishes", "reconnects", "has two tabs"}[h]
}
