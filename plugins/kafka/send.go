package kafka

import (
	"fmt"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Send implements app.Sender.
func (p *Plugin) Send(topic string) (app.Sending, error) {
	if !topicName.MatchString(topic) {
		return app.Sending{}, fmt.Errorf("TOPIC must be the name of a Kafka topic, got %q", topic)
	}
	return app.Sending{Sink: p.Sink(topic), Register: func(r *pipeline.Registry) error {
		p.log = r.Env().Logger.With("component", pluginName)
		r.Service("kafka.send", service{p})
		return nil
	}}, nil
}

var _ app.Sender = (*Plugin)(nil)
