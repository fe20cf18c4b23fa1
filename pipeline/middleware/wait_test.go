package middleware_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// Without a retry topic the delay of a RetryAfter passes before the nack.
func TestADelayIsKeptWithoutARetryTopic(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for _, tt := range []struct {
		name   string
		policy pipeline.Policy
		err    error
		drain  bool // begins after a second
		revoke bool // of the partition, after a second
		want   time.Duration
	}{
		{name: "the whole delay", err: pipeline.RetryAfter(boom, 20*time.Second), want: 20 * time.Second},
		{name: "no delay", err: boom},
		{name: "at most the longest hold", policy: pipeline.Policy{LongestHold: time.Minute}, err: pipeline.RetryAfter(boom, time.Hour), want: time.Minute},
		{name: "no longer than until the drain", err: pipeline.RetryAfter(boom, time.Hour), drain: true, want: time.Second},
		{name: "no longer than until the partition is lost", err: pipeline.RetryAfter(boom, time.Hour), revoke: true, want: time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tt.policy.DeadLetter = pipelinetest.NewRecorder("dead")
				reg, err := pipeline.NewRegistry(pipeline.Env{})
				require.NoError(t, err)
				chain := middleware.New(reg, middleware.Options{})
				handle, _ := chain.Wrap(pipeline.Route{
					Name: "toy.route", From: pipelinetest.NewFeed("in"), Policy: tt.policy,
					Handle: handler(func(context.Context, string) error { return tt.err }),
				})
				if tt.drain {
					time.AfterFunc(time.Second, chain.Draining)
				}
				msg, revoked := message.NewMessage("1", nil), make(chan struct{})
				msg.SetContext(pipeline.WithDelivery(t.Context(), pipeline.Delivery{Revoked: revoked}))
				if tt.revoke {
					time.AfterFunc(time.Second, func() { close(revoked) })
				}
				begin := time.Now()
				_, err = handle(msg)
				require.ErrorIs(t, err, boom, "nacked")
				require.Equal(t, tt.want, time.Since(begin))
			})
		})
	}
}

// A message that can never succeed is acked only where it is kept, or where the route says that it
// may be lost.
func TestNothingIsLostUnlessTheRouteSaysSo(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(context.Context, string) error{
		"panic":     func(context.Context, string) error { panic("ouch") },
		"permanent": func(context.Context, string) error { return pipeline.Permanent(errors.New("never")) },
	} {
		for _, tt := range []struct {
			name    string
			dead    pipeline.Sink
			nacked  bool
			dropped float64
		}{
			{name: "no dead letter", nacked: true},
			{name: "Drop", dead: pipeline.Drop, dropped: 1},
		} {
			t.Run(name+", "+tt.name, func(t *testing.T) {
				t.Parallel()
				reg, err := pipeline.NewRegistry(pipeline.Env{})
				require.NoError(t, err)
				handle, _ := middleware.New(reg, middleware.Options{}).Wrap(pipeline.Route{
					Name: "toy.route", From: pipelinetest.NewFeed("in"), Handle: handler(fails), Policy: pipeline.Policy{DeadLetter: tt.dead},
				})
				require.Equal(t, []string{""}, classesOfDropped(t, reg), "an alert sees the first one as an increase")
				_, err = handle(message.NewMessage("1", nil))
				require.Equal(t, tt.nacked, err != nil)
				if tt.dropped > 0 {
					require.Contains(t, classesOfDropped(t, reg), name)
				}
			})
		}
	}
}

// classesOfDropped returns the error classes for which dropped messages are counted.
func classesOfDropped(t *testing.T, reg *pipeline.Registry) (classes []string) {
	t.Helper()
	all := prometheus.NewRegistry()
	all.MustRegister(reg.Collectors()...)
	families, err := all.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "millrace_messages_total" && labels["outcome"] == "dropped" {
				classes = append(classes, labels["class"])
			}
		}
	}
	return classes
}
