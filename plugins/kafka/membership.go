package kafka

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"sync"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// The values of Config.Balance, which are the names that group members agree on.
const (
	balanceRange       = sarama.RangeBalanceStrategyName
	balanceSticky      = sarama.StickyBalanceStrategyName
	balanceCooperative = sarama.CooperativeStickyBalanceStrategyName
)

// cooperates says whether a member with these settings keeps partitions during a rebalance. An
// eager assignor in the list makes the member eager.
func (c *Config) cooperates() bool {
	return !slices.ContainsFunc(c.Balance, func(name string) bool { return name != balanceCooperative })
}

// assignors returns what a member offers to its group. Some have state, so each member has its own.
func (c *Config) assignors(topic string, o *ownership) []sarama.BalanceStrategy {
	offered := make([]sarama.BalanceStrategy, len(c.Balance))
	for i, name := range c.Balance {
		switch name {
		case balanceSticky:
			offered[i] = sarama.NewBalanceStrategySticky()
		case balanceCooperative:
			offered[i] = sarama.NewBalanceStrategyCooperativeSticky()
		default:
			offered[i] = sarama.NewBalanceStrategyRange()
		}
		if inner, ok := offered[i].(cooperativeAssignor); ok && c.cooperates() {
			offered[i] = observedAssignor{inner, topic, o}
		}
	}
	return offered
}

// cooperativeAssignor has all methods of sarama's cooperative assignor.
type cooperativeAssignor interface {
	sarama.RebalanceProtocolBalanceStrategy
	sarama.SubscriptionUserDataBalanceStrategy
	sarama.OnAssignmentBalanceStrategy
}

// observedAssignor reports each assignment. In a cooperative group sarama ends neither the session
// nor a context when it revokes a partition. It closes the claim's channel, and a reader whose
// window is full does not read that channel.
type observedAssignor struct {
	cooperativeAssignor
	topic string
	owned *ownership
}

// OnAssignment implements sarama.OnAssignmentBalanceStrategy. It is called before sarama revokes or
// begins a claim.
func (s observedAssignor) OnAssignment(a *sarama.ConsumerGroupMemberAssignment, generation int32) {
	s.cooperativeAssignor.OnAssignment(a, generation)
	s.owned.assign(a.Topics[s.topic])
}

// ownership is which partitions a member has, and a context per partition that ends when the
// partition is revoked. An eager member has nothing in it: there the end of a session takes all
// partitions away.
type ownership struct {
	onAssign func(partitions int) // may be nil

	mu    sync.Mutex
	known bool
	held  map[int32]held
}

type held struct {
	ctx context.Context //nolint:containedctx // it is the partition's, not a call's
	end context.CancelFunc
}

// assign notes the partitions of a new generation.
func (o *ownership) assign(partitions []int32) {
	o.mu.Lock()
	o.known = true
	next := make(map[int32]held, len(partitions))
	for _, p := range partitions {
		h, kept := o.held[p]
		if !kept {
			h.ctx, h.end = context.WithCancel(context.Background())
		}
		next[p] = h
		delete(o.held, p)
	}
	for _, h := range o.held {
		h.end()
	}
	o.held = next
	o.mu.Unlock()
	if o.onAssign != nil {
		o.onAssign(len(partitions))
	}
}

// during returns a context that ends with ctx and when the partition is revoked.
func (o *ownership) during(ctx context.Context, partition int32) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	o.mu.Lock()
	h, has := o.held[partition]
	known := o.known
	o.mu.Unlock()
	switch {
	case has:
		stop := context.AfterFunc(h.ctx, cancel)
		return ctx, func() { stop(); cancel() }
	case known:
		cancel() // it was revoked before its claim began
	}
	return ctx, cancel
}

// legalInstance is what a broker accepts in a group.instance.id.
var legalInstance = regexp.MustCompile(`^[a-zA-Z0-9._-]+$`)

// checkStatic reports why the members of this process can't be static ones.
func (p *Plugin) checkStatic(c Config) error {
	if !c.StaticMembership {
		return nil
	}
	bad := func(format string, args ...any) error {
		return &setting.FieldError{Path: "static_membership", Problem: fmt.Sprintf(format, args...)}
	}
	switch env := p.routes.Env(); {
	case !env.InstanceConfigured:
		return bad("needs instance_id: without it the name of this instance changes at each start")
	case !legalInstance.MatchString(env.Instance):
		return bad("needs an instance_id of letters, digits, dot, hyphen and underscore, got %q", env.Instance)
	}
	return nil
}

// memberName returns the group.instance.id of the next member of group on topic, or nothing for a
// dynamic member. The topic is part of it, because every subscription of an instance is a member. A
// second subscription of the same topic and group gets a number.
func (p *Plugin) memberName(c Config, topic, group string) string {
	if !c.StaticMembership {
		return ""
	}
	taken := map[string]bool{}
	for _, s := range p.metrics.open() {
		if s.group == group {
			taken[s.instance] = true
		}
	}
	first := p.routes.Env().Instance + "." + topic
	name := first
	for n := 2; taken[name]; n++ {
		name = fmt.Sprintf("%s.%d", first, n)
	}
	return name
}
