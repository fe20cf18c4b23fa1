package once_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// distant is a way to a server whose answers take a time.
type distant struct {
	ln     net.Listener
	target string
	takes  atomic.Int64 // nanoseconds
	ends   sync.WaitGroup
}

// newDistant returns the way to the server of dsn, and the DSN that leads over it.
func newDistant(t *testing.T, dsn string) (d *distant, over string) {
	t.Helper()
	at, err := url.Parse(dsn)
	require.NoError(t, err)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d = &distant{ln: ln, target: at.Host}
	d.ends.Go(func() { d.serve(context.WithoutCancel(t.Context())) })
	t.Cleanup(func() { _ = ln.Close(); d.ends.Wait() })
	at.Host = ln.Addr().String()
	return d, at.String()
}

func (d *distant) serve(ctx context.Context) {
	for {
		in, err := d.ln.Accept()
		if err != nil {
			return
		}
		out, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		pump := func(to, from net.Conn, takes func() time.Duration) {
			defer func() { _, _ = to.Close(), from.Close() }()
			buffer := make([]byte, 32<<10)
			for {
				n, err := from.Read(buffer)
				if err != nil {
					return
				}
				loop.Sleep(ctx, takes())
				if _, err := to.Write(buffer[:n]); err != nil {
					return
				}
			}
		}
		d.ends.Go(func() { pump(out, in, func() time.Duration { return 0 }) })
		d.ends.Go(func() { pump(in, out, func() time.Duration { return time.Duration(d.takes.Load()) }) })
	}
}

// An instance that is stopped while its claim is committed, and has not heard of that, calls for what it has claimed.
// Otherwise an effect that nobody has called for would count as perhaps done.
func TestADrainLeavesNoClaimWithoutACall(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	dsn := sqldbtest.Schema(t)
	way, over := newDistant(t, dsn)
	direct, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = direct.Close(context.Background()) })
	count := func(where string) (n int) {
		require.NoError(t, direct.QueryRow(t.Context(), "SELECT count(*) FROM once_effects WHERE "+where).Scan(&n))
		return n
	}
	for i := range 2 {
		w := oncetest.On(t, over)
		p := newInvoices(w.Once, once.Never, nil)
		stop := w.StartUntil(p)
		way.takes.Store(int64(200 * time.Millisecond))
		number := fmt.Sprint(i)
		_, err = p.effects.Enqueue(t.Context(), invoice{Customer: "acme", Number: number})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return count("id = '"+number+"' AND state <> 1") == 1 }, 2*time.Minute, time.Millisecond, "it is claimed")
		require.NoError(t, stop())
		require.Equal(t, 1, count("id = '"+number+"' AND state = 5"), "it is done: nothing went wrong but the stop")
		require.Equal(t, 1, p.far.Executed("invoice:acme:"+number))
		way.takes.Store(0)
	}
}
