package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// notifier tells the service manager how `run` is doing, by the protocol of sd_notify(3): systemd
// reads it for a unit with Type=notify. Without a socket in the environment it tells nobody. What it
// can't tell is logged and changes nothing else.
type notifier struct {
	conn     net.Conn      // nil: no service manager listens
	watchdog time.Duration // how long the service manager waits for a sign of life; 0: it does not
	settings Settings
	log      *slog.Logger
	ctx      context.Context // of the command; ends with a signal
	unwatch  func()          // waits until the end of ctx, if it has ended, was told
	ending   sync.Once       // STOPPING=1 is told once, with the first reason
	pings    loop.Group
}

const (
	// notifyTimeout bounds one message to a service manager that does not read.
	notifyTimeout = time.Second
	// notifyMargin is the time beyond start_timeout and stop_timeout that the service manager is asked
	// for: the last traces are flushed, and an environment inside the process ends.
	notifyMargin = 10 * time.Second
	// pingsPerWatchdog is how many signs of life one period of the watchdog gets, so that one which is
	// late does not end the process (sd_watchdog_enabled(3)).
	pingsPerWatchdog = 2
)

// newNotifier connects to the socket that environ names, and tells that the process starts. It tells
// when ctx ends, also during the start. Its caller closes it.
func newNotifier(ctx context.Context, environ []string, l *Loaded) *notifier {
	n := &notifier{settings: l.Settings, log: l.Logger, ctx: context.WithoutCancel(ctx), unwatch: func() {}}
	socket := environment(environ, "NOTIFY_SOCKET")
	if socket == "" {
		return n
	}
	var err error
	if n.conn, err = (&net.Dialer{Timeout: notifyTimeout}).DialContext(n.ctx, "unixgram", socket); err != nil {
		n.conn = nil
		n.warn(err)
		return n
	}
	if n.watchdog, err = watchdogPeriod(environ, os.Getpid()); err != nil {
		n.warn(err)
	}
	n.tell("STATUS=Starting: waits at most %s for its servers\n%s", n.settings.StartTimeout, extend(n.settings.StartTimeout))
	told := make(chan struct{})
	forget := context.AfterFunc(ctx, func() {
		defer close(told)
		n.stopping(context.Cause(ctx))
	})
	n.unwatch = func() {
		if !forget() {
			<-told
		}
	}
	return n
}

// watchdogPeriod returns how long the service manager waits for a sign of life of the process pid; 0
// when it does not.
func watchdogPeriod(environ []string, pid int) (time.Duration, error) {
	period, whose := environment(environ, "WATCHDOG_USEC"), environment(environ, "WATCHDOG_PID")
	if period == "" || whose != "" && whose != strconv.Itoa(pid) {
		return 0, nil
	}
	usec, err := strconv.ParseInt(period, 10, 64)
	if d := time.Duration(usec) * time.Microsecond; err == nil && usec > 0 && d.Microseconds() == usec {
		return d, nil
	}
	return 0, fmt.Errorf("WATCHDOG_USEC must be a number of microseconds above 0, got %q", period)
}

// untilStopped is the work of `run`, whose messages flow: it tells that the start is over and waits
// for the end of ctx. Its error is errInterrupt after Ctrl-C, and otherwise nil.
func (n *notifier) untilStopped(ctx context.Context, r *Running) error {
	n.tell("READY=1\nSTATUS=Running %s as %s", Plural(int64(len(r.Registry.Routes())), "route"), Printable(n.settings.instance()))
	n.ping()
	<-ctx.Done()
	reason := context.Cause(ctx)
	n.stopping(reason)
	if errors.Is(reason, errInterrupt) {
		return errInterrupt
	}
	return nil
}

// ping begins the signs of life. Like /livez they say that the process can answer, and nothing about
// its servers, because a restart does not repair those.
func (n *notifier) ping() {
	if n.watchdog == 0 {
		return
	}
	// Its only error is that it was started before.
	_ = n.pings.Start(n.ctx, func(ctx context.Context) {
		loop.Every(ctx, n.watchdog/pingsPerWatchdog, func(context.Context) { n.tell("WATCHDOG=1") })
	})
}

// stopping tells that the process ends and why, and asks for as long as it may take.
func (n *notifier) stopping(reason error) {
	n.ending.Do(func() {
		limit := n.settings.StopTimeout
		n.tell("STOPPING=1\nSTATUS=Draining for at most %s: %s\n%s", limit, Printable(reason.Error()), extend(limit))
	})
}

// extend asks the service manager to wait that long for the next message, even if its own limit is
// shorter.
func extend(atMost time.Duration) string {
	return fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (atMost + notifyMargin).Microseconds())
}

func (n *notifier) tell(format string, args ...any) {
	if n.conn == nil {
		return
	}
	if err := n.conn.SetWriteDeadline(time.Now().Add(notifyTimeout)); err != nil {
		n.warn(err)
		return
	}
	if _, err := fmt.Fprintf(n.conn, format, args...); err != nil { // one write, which is one message
		n.warn(err)
	}
}

func (n *notifier) warn(err error) {
	n.log.WarnContext(n.ctx, "service manager not told", logs.Err(err))
}

// close ends the signs of life, which continue during the drain.
func (n *notifier) close() {
	n.unwatch()
	_ = n.pings.Stop(n.ctx) // each lasts at most notifyTimeout
	if n.conn != nil {
		_ = n.conn.Close() // nothing is buffered
	}
}
