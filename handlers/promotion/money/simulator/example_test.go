package simulator_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
)

func Example() {
	ctx := context.Background()
	sim, err := simulator.New(simulator.Config{Faults: simulator.Faults{FailRate: 1}})
	if err != nil {
		panic(err)
	}
	if err := sim.Start(ctx); err != nil {
		panic(err)
	}
	defer sim.Stop(ctx)

	pay := func() int {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, sim.URL()+"/v1/points/charges",
			strings.NewReader(`{"promotionId":12345,"promotionSummaryId":9,"targetId":777,"amount":500}`))
		if err != nil {
			panic(err)
		}
		req.Header.Set("Idempotency-Key", "POINT:12345:777")
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			panic(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	fmt.Println(pay())
	if err := sim.SetFaults(simulator.Faults{}); err != nil {
		panic(err)
	}
	fmt.Println(pay(), pay())
	page, err := sim.Page(simulator.Query{Type: "POINT"})
	if err != nil {
		panic(err)
	}
	for _, e := range page.Entries {
		fmt.Println(e.Key, e.Value, "charged", e.Executions, "time(s)")
	}
	// Output:
	// 500
	// 200 200
	// POINT:12345:777 500 charged 1 time(s)
}
