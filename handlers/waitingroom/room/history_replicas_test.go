package room

import (
	"context"
	"errors"
	"maps"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/plugins/redis"
)

// acks answers the WAIT of a client for the replica of a history.
type acks struct {
	left int  // how many more are answered with a replica; negative: all
	last bool // the last one was
}

func (*acks) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (*acks) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (a *acks) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		last, ok := cmds[len(cmds)-1].(interface{ SetVal(val any) })
		if !ok || cmds[len(cmds)-1].Name() != "wait" {
			return next(ctx, cmds)
		}
		err := next(ctx, cmds[:len(cmds)-1])
		if goredis.HasErrorPrefix(cmds[0].Err(), "NOSCRIPT") { // it is sent again with its text
			return err
		}
		replicas := int64(1)
		if a.last = a.left != 0; !a.last {
			replicas = 0
		}
		a.left -= min(1, max(0, a.left))
		last.SetVal(replicas)
		return err
	}
}

// stopped reports whether the replica receives nothing.
func (h *history) stopped() bool { return h.acks.left == 0 }

// stopReplica stops the replica after some more answers.
func (h *history) stopReplica(after int) {
	if h.o.Replicas > 0 {
		h.logf("the replica stops after %d answers", after)
		h.acks.left = after
	}
}

func (h *history) returnReplica() {
	if h.o.Replicas > 0 && h.acks.left >= 0 {
		h.logf("the replica returns")
		h.acks.left = -1
		h.replicate()
	}
}

// answered reports whether an answer came. With a WAIT, the replica then has everything.
func (h *history) answered(err error) bool {
	if errors.Is(err, redis.ErrNotReplicated) && h.stopped() {
		return false
	}
	h.must(err)
	if h.acks.last {
		h.acks.last = false
		h.replicate()
	}
	return true
}

// truth is what users and shops were promised. Without a WAIT, a replica has a copy of it.
type truth struct {
	over    map[string]int64  // the highest index at which a user left or ended
	tried   map[string]int64  // the same without an answer
	result  map[string]State  // what was answered to a shop, by lease
	unsure  map[string]State  // a late result without an answer, by lease: a repetition may be the first answer
	session map[string]string // the session for which a lease was verified
	until   map[string]int64  // the latest end that was answered to a shop, by lease, in the time of the room
}

func newTruth() truth {
	return truth{map[string]int64{}, map[string]int64{}, map[string]State{}, map[string]State{}, map[string]string{}, map[string]int64{}}
}

func (o truth) clone() truth {
	return truth{maps.Clone(o.over), maps.Clone(o.tried), maps.Clone(o.result), maps.Clone(o.unsure), maps.Clone(o.session), maps.Clone(o.until)}
}

// end ends all places of a user up to an index.
func (o truth) end(user string, index int64, answered bool) {
	list := o.over
	if !answered {
		list = o.tried
	}
	list[user] = max(list[user], index)
}

// over is the highest index at which a user may have ended.
func (h *history) over(user string) int64 { return max(h.truth.over[user], h.truth.tried[user]) }

// failover makes the replica the server.
func (h *history) failover() {
	if h.replica == nil {
		return
	}
	h.logf("failover to the replica")
	before := h.truth
	h.restore()
	if h.o.Replicas > 0 { // no promise is lost
		h.truth.over, h.truth.result, h.truth.session, h.truth.until = before.over, before.result, before.session, before.until
		h.acks.left = -1
	}
	// The replica has at most the excess that the server had before.
	h.excess, h.mayExceed = h.replica.excess, h.o.Replicas == 0 || h.replica.mayExceed
	h.run++
	h.advance(sec)
	h.reconnect()
}
