package simulator_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/millrace-io/millrace/plugins/once/simulator"
)

func Example() {
	ctx := context.Background()
	mails := simulator.API{Operation: func(r *http.Request) (string, simulator.Check) {
		if r.URL.Path != "/mails" {
			return "", nil
		}
		return r.Header.Get("Idempotency-Key"), func([]byte) (simulator.Order, error) { return simulator.Order{}, nil }
	}}
	sim, err := simulator.New(mails, simulator.Config{Faults: simulator.Faults{FailRate: 1}})
	if err != nil {
		panic(err)
	}
	if err := sim.Start(ctx); err != nil {
		panic(err)
	}
	defer sim.Stop(ctx)

	send := func() int {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, sim.URL()+"/mails", strings.NewReader(`{"to":"ann"}`))
		if err != nil {
			panic(err)
		}
		req.Header.Set("Idempotency-Key", "mail:ann:1")
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			panic(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	fmt.Println(send())
	if err := sim.SetFaults(simulator.Faults{}); err != nil {
		panic(err)
	}
	fmt.Println(send(), send())
	for e, err := range simulator.ReadJournal(ctx, http.DefaultClient, sim.URL(), simulator.Query{}) {
		if err != nil {
			panic(err)
		}
		fmt.Println(e.Key, e.Body, "executed", e.Executions, "time(s)")
	}
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// 500
	// 200 200
	// mail:ann:1 {"to":"ann"} executed 1 time(s)
}
