package operate

import (
	"context"
	"fmt"
	"time"
)

const clockSamples = 5

// What checks say about the offset of two clocks.
const (
	ClockWarn   = time.Second      // a warning; leases of a few seconds still hold
	ClockFail   = 10 * time.Second // a failure; leases and presences end too early or too late
	ClockRemedy = "synchronize the clocks of both machines by NTP, because leases and due times compare them"
)

// Clock compares the clock of a server with that of this process, by the quickest of several answers.
// now reads the clock of the server.
func Clock(ctx context.Context, now func(context.Context) (time.Time, error)) (Check, error) {
	var offset, best time.Duration
	for i := range clockSamples {
		asked := time.Now()
		there, err := now(ctx)
		if err != nil {
			return Check{}, err
		}
		if took := time.Since(asked); i == 0 || took < best {
			offset, best = there.Sub(asked.Add(took/2)), took
		}
	}
	return offsetCheck(offset, best), nil
}

// offsetCheck judges an offset that is only known to within half of the time that the answer took.
func offsetCheck(offset, took time.Duration) Check {
	off := max(offset.Abs()-took/2, 0)
	if off == 0 {
		return Check{Level: OK, Text: "no offset that exceeds the time of an answer"}
	}
	text := fmt.Sprintf("the server is %s %s", offset.Abs().Round(time.Millisecond), map[bool]string{true: "ahead", false: "behind"}[offset >= 0])
	switch {
	case off >= ClockFail:
		return Check{Level: Fail, Text: text, Remedy: ClockRemedy}
	case off >= ClockWarn:
		return Check{Level: Warn, Text: text, Remedy: ClockRemedy}
	}
	return Check{Level: OK, Text: text}
}
