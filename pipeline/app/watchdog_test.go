package app

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWatchdogPeriod(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		environ []string
		want    time.Duration
		err     string
	}{
		"none":                 {nil, 0, ""},
		"of this process":      {[]string{"WATCHDOG_USEC=30000000", "WATCHDOG_PID=7"}, 30 * time.Second, ""},
		"of any process":       {[]string{"WATCHDOG_USEC=30000000"}, 30 * time.Second, ""},
		"of another process":   {[]string{"WATCHDOG_USEC=30000000", "WATCHDOG_PID=8"}, 0, ""},
		"no number":            {[]string{"WATCHDOG_USEC=30s"}, 0, `above 0, got "30s"`},
		"not positive":         {[]string{"WATCHDOG_USEC=0"}, 0, `above 0, got "0"`},
		"longer than possible": {[]string{"WATCHDOG_USEC=9223372036854775807"}, 0, "above 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := watchdogPeriod(tc.environ, 7)
			require.Equal(t, tc.want, got)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				return
			}
			require.NoError(t, err)
		})
	}
}

// timedConn notes when something was written to it.
type timedConn struct {
	net.Conn
	begin time.Time
	at    []time.Duration
}

func (*timedConn) SetWriteDeadline(time.Time) error { return nil }

func (c *timedConn) Write(b []byte) (int, error) {
	c.at = append(c.at, time.Since(c.begin))
	return len(b), nil
}

func (*timedConn) Close() error { return nil }

func TestASignOfLifeComesTwiceInAPeriod(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		conn := &timedConn{begin: time.Now()}
		n := &notifier{conn: conn, watchdog: 30 * time.Second, ctx: context.Background(), unwatch: func() {}}
		n.ping()
		<-time.After(time.Minute + time.Second)
		n.close()
		require.Equal(t, []time.Duration{15 * time.Second, 30 * time.Second, 45 * time.Second, time.Minute}, conn.at)
	})
}
