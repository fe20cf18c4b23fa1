//go:build faults

package failpoint

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Armed says whether this binary has failpoints.
const Armed = true

// trigger is one thing to do at one point.
type trigger struct {
	point  Point
	nth    int64
	every  bool // at every nth reach, not only at the nth
	action string
	count  atomic.Int64
}

var triggers = load() //nolint:gochecknoglobals // a failpoint is one line, without parameters

func load() *atomic.Pointer[[]*trigger] {
	var armed atomic.Pointer[[]*trigger]
	arm := func(text string) {
		ts, err := parse(text)
		if err != nil {
			fmt.Fprintln(os.Stderr, "failpoint:", err)
			os.Exit(2) //nolint:forbidigo // a wrong word here would let a case show nothing
		}
		armed.Store(&ts)
	}
	arm(os.Getenv("MILLRACE_FAULT_POINT"))
	if file := os.Getenv("MILLRACE_FAULT_FILE"); file != "" {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGUSR1)
		go func() {
			for range signals {
				text, err := os.ReadFile(file)
				if err != nil {
					continue // a second signal for the same file
				}
				arm(string(text))
				_ = os.Rename(file, file+".armed")
			}
		}()
	}
	return &armed
}

// parse reads "point:n[:action]" or "point:*n[:action]", separated by commas.
func parse(text string) ([]*trigger, error) {
	var ts []*trigger
	for one := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		if one == "" {
			continue
		}
		parts := strings.Split(one, ":")
		if len(parts) < 2 || len(parts) > 3 {
			return nil, fmt.Errorf("%q: must be point:n or point:n:action", one)
		}
		t := &trigger{point: Point(parts[0]), action: "kill"}
		if !slices.Contains(slices.Concat(Points(), EffectPoints(), EventPoints(), RoomPoints(), DrawPoints(), ReplayPoints()), t.point) {
			return nil, fmt.Errorf("%q: no such point", one)
		}
		number, every := strings.CutPrefix(parts[1], "*")
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q: the number must be > 0", one)
		}
		t.nth, t.every = n, every
		if len(parts) == 3 {
			t.action = parts[2]
		}
		if !slices.Contains([]string{"kill", "stop", "panic", "hang"}, t.action) {
			return nil, fmt.Errorf("%q: the action must be kill, stop, panic or hang", one)
		}
		ts = append(ts, t)
	}
	return ts, nil
}

// Hit says that the process is at p, and may not return.
func Hit(p Point) {
	for _, t := range *triggers.Load() {
		if t.point != p {
			continue
		}
		if n := t.count.Add(1); n == t.nth || t.every && n%t.nth == 0 {
			t.act(n)
		}
	}
}

func (t *trigger) act(n int64) {
	fmt.Fprintf(os.Stderr, `{"msg":"failpoint","point":%q,"reached":%d,"action":%q}`+"\n", t.point, n, t.action)
	switch t.action {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal comes; nothing after this point may run
	case "stop":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // the signal may reach this thread a moment later
	case "panic":
		panic("failpoint " + string(t.point))
	case "hang":
		select {}
	}
}
