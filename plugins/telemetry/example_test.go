package telemetry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// payouts is a plugin with a readiness check.
type payouts struct{}

func (payouts) Name() string { return "payouts" }

func (payouts) Register(r *pipeline.Registry) error {
	r.Health("payouts", func(ctx context.Context) error {
		telemetry.Detail(ctx, "oldest_unpaid_seconds", 12)
		return nil // an error when work that is due makes no progress
	})
	return nil
}

// Example starts the operations server and reads whether the process is ready.
func Example() {
	ctx := context.Background()
	ops := telemetry.New()
	if c, ok := ops.Settings().(*telemetry.Config); ok {
		c.Listen = "127.0.0.1:0" // in a service: plugins.telemetry.listen
	}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, ops, payouts{})
	if err != nil {
		fmt.Println(err)
		return
	}
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	if err := rt.StartServices(ctx); err != nil {
		fmt.Println(err)
		return
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var answer telemetry.Readiness
	for !answer.Ready { // until each check has had its first result
		resp, err := client.Get("http://" + ops.Addr() + "/readyz?verbose")
		if err != nil {
			fmt.Println(err)
			return
		}
		err = json.NewDecoder(resp.Body).Decode(&answer)
		resp.Body.Close()
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(answer.Ready, answer.Checks["payouts"].Details)
	fmt.Println(rt.Stop(ctx))
	// Output:
	// true map[oldest_unpaid_seconds:12]
	// <nil>
}
