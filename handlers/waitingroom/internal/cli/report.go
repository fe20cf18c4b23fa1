package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/millrace-io/millrace/handlers/waitingroom/demo"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/httpserver"
)

func writeReport(out io.Writer, r demo.Report) error {
	w := app.Table(out)
	row := func(n int, text string) { fmt.Fprintf(w, "  %s\t%s\n", app.Thousands(int64(n)), text) }
	fmt.Fprintln(w)
	row(r.Users, "users entered")
	row(r.Promoted, "promoted, in order")
	row(r.Sold, fmt.Sprintf("of %s sold", app.Plural(r.Capacity, "seat")))
	row(r.Abandoned, "abandoned")
	row(r.Expired, "let their time pass")
	row(r.Departed, "left while waiting")
	row(r.Unserved, "still waited when the seats were sold")
	row(r.Reconnects, "connections to the same place again")
	row(r.Replays, "second sessions refused")
	row(int(r.Leases), "slots not free at the end")
	if r.Drawn.Problem == "" {
		row(r.Drawn.Users, "users of another room drawn by lot; the order was verified from its audit file alone")
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, problem := range r.Problems[:min(10, len(r.Problems))] {
		fmt.Fprintf(out, "  %s\n", app.Printable(problem))
	}
	verdict := "No user was overtaken or lost, each slot became free again, and no seat was sold twice."
	if !r.OK() {
		verdict = fmt.Sprintf("WRONG: %s.", app.Plural(int64(len(r.Problems)), "problem"))
	}
	_, err := fmt.Fprintf(out, "\n%s\n%.1f s. %s in between.\n", verdict, r.Seconds, []string{"No process was killed", "A broker was killed", "A broker and a dispatcher were killed"}[r.Killed])
	return err
}

// listen serves a handler on a free port of this machine. Warnings of the server go to errors.
func listen(ctx context.Context, h http.Handler, errors io.Writer) (address string, stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("demo: %w", err)
	}
	address = "http://" + l.Addr().String()
	server, l := httpserver.Tool(l, h, slog.New(slog.NewTextHandler(errors, nil)))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l) // until stop
	}()
	return address, func() {
		_ = server.Close() // the demo is over
		<-ended
	}, nil
}

// freeAddress returns the address of a free port of this machine.
func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("demo: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// lateHandler is a handler that is set after its server has started.
type lateHandler struct{ h atomic.Pointer[http.Handler] }

func (l *lateHandler) set(h http.Handler) { l.h.Store(&h) }

func (l *lateHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := l.h.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	http.Error(w, "starting", http.StatusServiceUnavailable)
}
