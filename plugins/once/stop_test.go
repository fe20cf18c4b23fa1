package once

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// slowTopic publishes when it may.
type slowTopic struct {
	asked, may chan struct{}
	published  []*message.Message
}

func (*slowTopic) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: "kafka", Name: "settled"}
}

func (s *slowTopic) Publish(ctx context.Context, msgs ...*message.Message) error {
	close(s.asked)
	select {
	case <-s.may:
		s.published = append(s.published, msgs...)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A stop waits for the results of a kind whose calls have ended, while the calls of another kind go on.
func TestAKindWhoseCallsGoOnDelaysNoResults(t *testing.T) {
	t.Parallel()
	cfg := ledger.DefaultConfig()
	cfg.DSN = setting.NewSecret("sqlite:" + filepath.Join(t.TempDir(), "once.db"))
	l, err := ledger.Open(t.Context(), cfg, ledger.Options{Instance: "a"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.CloseContext(context.Background()) })
	require.NoError(t, l.Migrate(t.Context()))
	config := DefaultKind("")
	config.KeyTTL = time.Hour
	require.NoError(t, l.Register(t.Context(), ledger.Kind{Name: "fast", Policy: config.policy(ByKey, false, "a"), Results: true}))
	_, err = l.Accept(t.Context(), []ledger.Record{{Key: ledger.Key{Kind: "fast", Group: "g", ID: "1"}, Payload: []byte("{}")}})
	require.NoError(t, err)
	var claimed []ledger.Claimed
	for lane := 0; len(claimed) == 0 && lane < ledger.Lanes; lane++ {
		claimed, err = l.Claim(t.Context(), "fast", lane, 1)
	}
	require.NoError(t, err)
	_, err = l.Settle(t.Context(), []ledger.End{{Key: claimed[0].Key, CallResult: rules.CallResult{Epoch: claimed[0].Epoch, Outcome: rules.Done}}})
	require.NoError(t, err)

	topic := &slowTopic{asked: make(chan struct{}), may: make(chan struct{})}
	slow := newWorker(NewPlugin(nil, nil), "slow", &config, nil)
	fast := newWorker(slow.plugin, "fast", &config, nil)
	slow.ended, fast.ended = make(chan struct{}), make(chan struct{})
	fast.results = newRelay(fast, topic, nil)
	fast.results.start(l)
	<-topic.asked
	close(fast.ended)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		close(topic.may)
		<-fast.results.ended
		cancel()
	}()
	require.ErrorContains(t, wait(ctx, []*worker{slow, fast}), "once: 0 calls of kind slow have not ended: context canceled") // and not: deadline exceeded
	require.Len(t, topic.published, 1)
}

// refusing is a topic whose answer is given.
type refusing func(n int) error

func (refusing) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: "kafka", Name: "settled"}
}

func (f refusing) Publish(_ context.Context, msgs ...*message.Message) error { return f(len(msgs)) }

// Results wait for a topic that takes nothing, and not for a record that is refused for good, or can't be made.
func TestWhenATopicTakesNothing(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for name, c := range map[string]struct {
		answer func(n int) error
		away   bool
		failed int
	}{
		"taken":            {func(int) error { return nil }, false, 1},
		"nothing is":       {func(int) error { return away }, true, 3},
		"none is, named":   {func(int) error { return pipeline.PublishError([]error{away, away}) }, true, 3},
		"one is":           {func(int) error { return pipeline.PublishError([]error{away, nil}) }, false, 2},
		"refused for good": {func(int) error { return pipeline.PublishError([]error{pipeline.Permanent(away), away}) }, false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRelay(nil, refusing(c.answer), func(r Result) ([]byte, error) {
				if r.ID == "bad" {
					return nil, away
				}
				return []byte(r.ID), nil
			})
			err := r.send(t.Context(), []ledger.Result{{Key: ledger.Key{ID: "1"}}, {Key: ledger.Key{ID: "bad"}}, {Key: ledger.Key{ID: "2"}}})
			require.Equal(t, c.away, r.away)
			var partial *pipeline.PartialError
			if errors.As(err, &partial) {
				require.Len(t, partial.Failed, c.failed)
				require.Contains(t, partial.Failed, 1, "it has no record")
				return
			}
			require.ErrorIs(t, err, away)
			require.Equal(t, 3, c.failed)
		})
	}
}
