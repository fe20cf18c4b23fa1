package operate_test

import (
	"fmt"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// parcels is a plugin that calls a carrier, whose box in the graph says when it does not work.
type parcels struct{ carrier operate.Calls }

func (*parcels) Name() string { return "parcels" }

func (p *parcels) Register(r *pipeline.Registry) error {
	p.carrier.Name, p.carrier.Place, p.carrier.Then = "carrier", pipeline.ServerOf("https://carrier.example/v1"), "each parcel waits for its retry"
	r.Offer(&p.carrier)
	return nil // and the route, whose Calls has the same endpoint
}

func ExampleCalls() {
	p := &parcels{}
	registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
	if err != nil {
		panic(err)
	}
	p.carrier.Answered() // by the handler, after each call
	for _, c := range operate.Conditions(registry) {
		fmt.Println(c.Place.Name, c.Level)
	}
	for range 3 {
		p.carrier.Failed("answered 503")
	}
	for _, c := range operate.Conditions(registry) {
		fmt.Println(c.Place.Name, c.Level)
	}
	// Output:
	// https://carrier.example ok
	// https://carrier.example warn
}
