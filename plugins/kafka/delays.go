package kafka

import "github.com/millrace-io/millrace/pipeline"

// Delays implements pipeline.Delayer: a claim does not deliver the records of a retry topic before
// their due times.
func (g groupSource) Delays() error { return nil }

// Delays implements pipeline.Delayer. The due time is a header of the record.
func (s sink) Delays() error { return nil }

var (
	_ pipeline.Delayer = groupSource{}
	_ pipeline.Delayer = sink{}
)
