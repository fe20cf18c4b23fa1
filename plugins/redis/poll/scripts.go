package poll

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/keep.lua
	keepSource string
	//go:embed lua/ack.lua
	ackSource string
	//go:embed lua/claim.lua
	claimSource string
	//go:embed lua/count.lua
	countSource string
	//go:embed lua/remove.lua
	removeSource string
)

// scripts are the compiled scripts of one owner. Each touches one key.
type scripts struct{ keep, ack, claim, count, remove *goredis.Script }

func newScripts() scripts {
	return scripts{
		goredis.NewScript(keepSource), goredis.NewScript(ackSource), goredis.NewScript(claimSource), goredis.NewScript(countSource),
		goredis.NewScript(removeSource),
	}
}

// maxIDs is how many entry ids go into one XACK: ElastiCache Serverless takes 3,999 arguments.
const maxIDs = 1000

// maxScriptIDs bounds how long one script call keeps the server from others (well under a millisecond).
const maxScriptIDs = 100

// kept is what keep.lua answers for one entry.
type kept int64

const (
	keptGone kept = -1
	keptLost kept = 0
	keptMine kept = 1
)

// setIdle runs keep.lua over ids and returns one answer an id.
func (s scripts) setIdle(ctx context.Context, c goredis.Scripter, stream, group, consumer string, idle time.Duration, ids []string) ([]kept, error) {
	out := make([]kept, 0, len(ids))
	for len(ids) > 0 {
		n := min(len(ids), maxScriptIDs)
		args := make([]any, 0, n+3)
		args = append(args, group, consumer, idle.Milliseconds())
		for _, id := range ids[:n] {
			args = append(args, id)
		}
		reply, err := s.keep.Run(ctx, c, []string{stream}, args...).Int64Slice()
		if err != nil {
			return out, fmt.Errorf("keep.lua: %w", err)
		}
		if len(reply) != n {
			return out, fmt.Errorf("keep.lua: %d answers for %d entries", len(reply), n)
		}
		for _, k := range reply {
			out = append(out, kept(k))
		}
		ids = ids[n:]
	}
	return out, nil
}

// ackMine runs ack.lua and returns how many entries were acknowledged.
func (s scripts) ackMine(ctx context.Context, c goredis.Scripter, stream, group, consumer string, ids []string) (int, error) {
	total := 0
	for len(ids) > 0 {
		n := min(len(ids), maxScriptIDs)
		args := make([]any, 0, n+2)
		args = append(args, group, consumer)
		for _, id := range ids[:n] {
			args = append(args, id)
		}
		acked, err := s.ack.Run(ctx, c, []string{stream}, args...).Int()
		if err != nil {
			return total, fmt.Errorf("ack.lua: %w", err)
		}
		total += acked
		ids = ids[n:]
	}
	return total, nil
}

// setCounts runs count.lua.
func (s scripts) setCounts(ctx context.Context, c goredis.Scripter, stream, group, consumer string, counts map[string]int64) error {
	args := []any{group, consumer}
	send := func() error {
		err := s.count.Run(ctx, c, []string{stream}, args...).Err()
		if args = args[:2]; err != nil {
			return fmt.Errorf("count.lua: %w", err)
		}
		return nil
	}
	for id, n := range counts {
		if args = append(args, id, n); len(args) == 2+2*maxScriptIDs {
			if err := send(); err != nil {
				return err
			}
		}
	}
	if len(args) == 2 {
		return nil
	}
	return send()
}

// Claimed is what one claim brought.
type Claimed struct {
	Entries   []goredis.XMessage
	Delivered map[string]int64 // by id: how often an entry was delivered, this time included
	Deleted   []string         // were pending, but their entries are no longer in the stream
	Took      time.Duration    // of the command
}

// claimOwn fetches at most maxScriptIDs of the consumer's own entries. deliveries is added to the times they were delivered.
func (s scripts) claimOwn(ctx context.Context, c goredis.Scripter, stream, group, consumer string, deliveries int, ids []string) (Claimed, error) {
	return runClaim(stream, ids, func(keys []string, args ...any) *goredis.Cmd { return s.claim.Run(ctx, c, keys, args...) },
		group, consumer, 0, consumer, deliveries)
}

// runClaim runs claim.lua.
func runClaim(stream string, ids []string, run func(keys []string, args ...any) *goredis.Cmd, args ...any) (Claimed, error) {
	for _, id := range ids {
		args = append(args, id)
	}
	out, begin := Claimed{Delivered: map[string]int64{}}, time.Now()
	reply, err := run([]string{stream}, args...).Slice()
	out.Took = time.Since(begin)
	if err != nil {
		return out, fmt.Errorf("claim.lua: %w", err)
	}
	for _, r := range reply {
		row, _ := r.([]any)
		if len(row) != 3 {
			return out, fmt.Errorf("claim.lua: a row of %d instead of 3", len(row))
		}
		id, _ := row[0].(string)
		count, _ := row[1].(int64)
		fields, _ := row[2].([]any)
		if count == 0 {
			out.Deleted = append(out.Deleted, id)
			continue
		}
		e := goredis.XMessage{ID: id, Values: make(map[string]any, len(fields)/2)}
		for i := 0; i+1 < len(fields); i += 2 {
			if name, ok := fields[i].(string); ok {
				e.Values[name] = fields[i+1]
			}
		}
		out.Entries = append(out.Entries, e)
		out.Delivered[id] = count
	}
	return out, nil
}

// removeConsumer removes a consumer that holds nothing; removed is false when it does.
func (s scripts) removeConsumer(ctx context.Context, c goredis.Scripter, stream, group, consumer string) (removed bool, err error) {
	n, err := s.remove.Run(ctx, c, []string{stream}, group, consumer).Int()
	if err != nil {
		return false, fmt.Errorf("remove.lua: %w", err)
	}
	return n == 1, nil
}

// KeepAlive resets the idle time of entries that are pending to consumer, without counting a delivery, so
// that nobody reclaims them. Entries that are no longer that consumer's are left alone; kept tells how many were
// not. It is for readers that are not Readers of this package, whose entries are kept alive anyway.
func KeepAlive(ctx context.Context, c goredis.UniversalClient, stream, group, consumer string, ids ...string) (kept int, err error) {
	return setIdleOf(ctx, c, stream, group, consumer, 0, ids)
}

// Release makes entries that are pending to consumer claimable at once by whoever reclaims after minIdle,
// without counting a delivery. Entries that are no longer that consumer's are left alone.
func Release(ctx context.Context, c goredis.UniversalClient, stream, group, consumer string, minIdle time.Duration, ids ...string) (given int, err error) {
	return setIdleOf(ctx, c, stream, group, consumer, minIdle, ids)
}

func setIdleOf(ctx context.Context, c goredis.UniversalClient, stream, group, consumer string, idle time.Duration, ids []string) (n int, err error) {
	answers, err := newScripts().setIdle(ctx, c, stream, group, consumer, idle, ids)
	for _, a := range answers {
		if a == keptMine {
			n++
		}
	}
	return n, err
}

// RemoveConsumer removes a consumer from its group if nothing is pending to it; check and removal are one
// script. removed is false when it holds something. A stream or group that is gone is no error.
func RemoveConsumer(ctx context.Context, c goredis.UniversalClient, stream, group, consumer string) (removed bool, err error) {
	removed, err = newScripts().removeConsumer(ctx, c, stream, group, consumer)
	if IsNoGroup(err) {
		return true, nil
	}
	return removed, err
}
