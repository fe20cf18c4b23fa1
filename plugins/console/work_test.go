package console_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// failing is a plugin whose route has failed.
type failing struct {
	*pipelinetest.Feed
	last pipeline.LastError
}

func (failing) Name() string { return "failing" }

func (f failing) Register(r *pipeline.Registry) error {
	r.Offer(f)
	r.Route(pipeline.Route{
		Name: "parcels", From: f, Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
	})
	return nil
}

func (f failing) Work(string) pipeline.RouteWork { return pipeline.RouteWork{LastError: &f.last} }

func (f failing) Backlog(context.Context) (operate.Backlog, error) {
	return operate.Backlog{Waiting: new(int64), InFlight: new(int64), Oldest: f.last.At.Add(-time.Second)}, nil
}

// The home page says why messages of a route are tried again, in the table and in the graph, without what is masked.
func TestTheHomePageSaysWhyMessagesAreTriedAgain(t *testing.T) {
	t.Parallel()
	r := start(t, nil, failing{pipelinetest.NewFeed("parcels"), pipeline.LastError{
		At: time.Now().Add(-3 * time.Second), Record: "parcels/4@17", Class: "timeout", Text: "POST https://carrier.example/send?token=" + planted + " <b>",
	}})
	home := r.get("/")
	require.Regexp(t, `some messages failed and are tried again; the last error: parcels/4@17 failed \(timeout, \d+s ago\) on rig: POST https://carrier\.example/send\?token=\S+ &lt;b&gt;</`, home)
	require.Regexp(t, `<title>route parcels[^<]*parcels/4@17 failed`, home)
	require.Contains(t, home, "Last errors are not known of all instances: without the plugin redis, instances tell each other nothing.")
	require.Contains(t, string(r.panels("home")["routes"].Value), "parcels/4@17 failed")
	r.requireMasked()
}
