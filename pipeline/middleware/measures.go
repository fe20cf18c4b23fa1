package middleware

import (
	"cmp"
	"math"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
)

// Measures implements operate.MeasureTeller with what /metrics has.
func (c *Chain) Measures(route string) pipeline.RouteMeasures {
	return pipeline.RouteMeasures{
		Outcomes:  c.metrics.outcomesOf(route),
		Durations: distributionOf(c.metrics.seconds, route),
		Batches:   distributionOf(c.metrics.batchRecords, route),
	}
}

// collected returns the series of a vector that have a route.
func collected(from prometheus.Collector, route string) (all []*dto.Metric) {
	series := make(chan prometheus.Metric)
	go func() {
		defer close(series)
		from.Collect(series)
	}()
	for one := range series {
		var value dto.Metric
		if one.Write(&value) == nil && label(&value, "route") == route {
			all = append(all, &value)
		}
	}
	return all
}

func label(of *dto.Metric, name string) string {
	for _, pair := range of.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// outcomesOf returns the outcomes of a route that have happened, the most frequent first.
func (m *metrics) outcomesOf(route string) (all []pipeline.Outcome) {
	for _, one := range collected(m.messages, route) {
		if n := uint64(one.GetCounter().GetValue()); n > 0 {
			all = append(all, pipeline.Outcome{Outcome: label(one, "outcome"), Class: label(one, "class"), Messages: n})
		}
	}
	sorted.By(all, func(a, b pipeline.Outcome) int {
		return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.Outcome, b.Outcome), cmp.Compare(a.Class, b.Class))
	})
	return all
}

func distributionOf(from prometheus.Collector, route string) (d pipeline.Distribution) {
	for _, one := range collected(from, route) {
		h := one.GetHistogram()
		d.Count, d.Sum = h.GetSampleCount(), h.GetSampleSum()
		for _, bucket := range h.GetBucket() {
			if math.IsInf(bucket.GetUpperBound(), 1) { // it is there once it has an exemplar
				continue
			}
			d.Bounds, d.AtMost = append(d.Bounds, bucket.GetUpperBound()), append(d.AtMost, bucket.GetCumulativeCount())
		}
	}
	return d
}
