package money_test

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

func ExampleClient_Charge() {
	ctx := context.Background()
	sim, err := simulator.New(simulator.Config{}) // in place of the real API
	if err != nil {
		panic(err)
	}
	if err := sim.Start(ctx); err != nil {
		panic(err)
	}
	defer sim.Stop(ctx)

	cfg := oncehttp.DefaultConfig()
	cfg.URL = sim.URL()
	client, err := money.New(cfg, nil)
	if err != nil {
		panic(err)
	}
	defer client.Close()

	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // in the plugin: the end of the lease
	defer cancel()
	charge := money.Charge{
		Operation: money.Operation{Name: "chargePoint", Path: "/v1/points/charges"},
		Key:       "POINT:12345:777",
		Body:      []byte(`{"promotionId":12345,"promotionSummaryId":9,"targetId":777,"amount":500}`),
	}
	first := client.Charge(ctx, charge)
	again := client.Charge(ctx, charge)
	later := client.Lookup(ctx, charge.Key)
	fmt.Println(first.Class, again.Class, later.Class)
	fmt.Println("charged once:", first.TransactionKey == again.TransactionKey && sim.Summary().Executions == 1)
	// Output:
	// paid paid paid
	// charged once: true
}
