package operate

import "github.com/millrace-io/millrace/pipeline"

// MeasureTeller is what the chain of a process offers (pipeline.Registry.Offer): what its metrics have of a route. It is
// safe for concurrent use.
type MeasureTeller interface {
	Measures(route string) pipeline.RouteMeasures
}

// MeasuresHere returns what the metrics of this process have of a route. known is false where no routes run, as in a command.
func MeasuresHere(reg *pipeline.Registry, route string) (m pipeline.RouteMeasures, known bool) {
	for _, t := range pipeline.Offers[MeasureTeller](reg) {
		return t.Measures(route), true
	}
	return m, false
}
