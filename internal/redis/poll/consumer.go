package poll

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"maps"
	"slices"
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

const (
	// maxIDs is the maximum number of ids in one XACK: ElastiCache Serverless takes 3,999
	// arguments.
	maxIDs = 1000
	// maxScriptIDs limits the time of one script call, which blocks the server, to less than 1 ms.
	maxScriptIDs = 100
	// commandTimeout limits a command including the client's own retries.
	commandTimeout = 10 * time.Second
)

// Consumer is one consumer of a group. Its exported methods are for programs that read with their
// own client: a Reader releases and removes by itself.
type Consumer struct {
	Client              goredis.UniversalClient
	Stream, Group, Name string
}

// Release makes entries that are pending to the consumer claimable at once after minIdle, and
// returns their number. It counts no delivery. Entries of other consumers stay unchanged.
func (c Consumer) Release(ctx context.Context, minIdle time.Duration, ids ...string) (released int, err error) {
	answers, err := c.setIdle(ctx, minIdle, ids)
	for _, a := range answers {
		if a == keptMine {
			released++
		}
	}
	return released, err
}

// Remove removes the consumer from its group if nothing is pending to it. One script checks and
// removes. When the stream or the group does not exist, removed is true.
func (c Consumer) Remove(ctx context.Context) (removed bool, err error) {
	n, err := c.runScript(ctx, removeSource).Int()
	if IsNoGroup(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("remove.lua: %w", err)
	}
	return n == 1, nil
}

// runScript runs a script with group, consumer and args.
func (c Consumer) runScript(ctx context.Context, source string, args ...any) *goredis.Cmd {
	return goredis.NewScript(source).Run(ctx, c.Client, []string{c.Stream}, append([]any{c.Group, c.Name}, args...)...)
}

// withIDs appends ids to args.
func withIDs(ids []string, args ...any) []any {
	for _, id := range ids {
		args = append(args, id)
	}
	return args
}

// kept is the reply of keep.lua for one entry.
type kept int64

const (
	keptDeleted kept = -1
	keptMine    kept = 1
)

// setIdle runs keep.lua and returns one answer per id.
func (c Consumer) setIdle(ctx context.Context, idle time.Duration, ids []string) ([]kept, error) {
	out := make([]kept, 0, len(ids))
	for part := range slices.Chunk(ids, maxScriptIDs) {
		reply, err := c.runScript(ctx, keepSource, withIDs(part, idle.Milliseconds())...).Int64Slice()
		if err != nil {
			return out, fmt.Errorf("keep.lua: %w", err)
		}
		if len(reply) != len(part) {
			return out, fmt.Errorf("keep.lua: %d answers for %d entries", len(reply), len(part))
		}
		for _, k := range reply {
			out = append(out, kept(k))
		}
	}
	return out, nil
}

// ackMine acknowledges those of the entries that are pending to the consumer.
func (c Consumer) ackMine(ctx context.Context, ids []string) (acked int64, err error) {
	for part := range slices.Chunk(ids, maxScriptIDs) {
		n, err := c.runScript(ctx, ackSource, withIDs(part)...).Int64()
		if err != nil {
			return acked, fmt.Errorf("ack.lua: %w", err)
		}
		acked += n
	}
	return acked, nil
}

// setCounts writes how often entries were delivered.
func (c Consumer) setCounts(ctx context.Context, counts map[string]int64) error {
	for part := range slices.Chunk(slices.Collect(maps.Keys(counts)), maxScriptIDs) {
		var args []any
		for _, id := range part {
			args = append(args, id, counts[id])
		}
		if err := c.runScript(ctx, countSource, args...).Err(); err != nil {
			return fmt.Errorf("count.lua: %w", err)
		}
	}
	return nil
}

// readCmd is an XREADGROUP that the client never re-sends: that would hide that the reply of the
// first, with its entries, was lost.
type readCmd struct{ *goredis.XStreamSliceCmd }

// NoRetry implements goredis.Cmder.
func (readCmd) NoRetry() bool { return true }

// readNew returns the command that reads at most count new entries.
func (c Consumer) readNew(ctx context.Context, count int) goredis.Cmder {
	cmd := readCmd{goredis.NewXStreamSliceCmd(ctx, "xreadgroup", "group", c.Group, c.Name, "count", count, "streams", c.Stream, ">")}
	cmd.SetFirstKeyPos(7)
	return cmd
}

// entriesOf returns the entries that a command of readNew has received.
func entriesOf(cmd goredis.Cmder) []goredis.XMessage {
	if read, ok := cmd.(readCmd); ok && len(read.Val()) > 0 {
		return read.Val()[0].Messages
	}
	return nil
}

// onceCmd is a script that the client never re-sends.
type onceCmd struct{ *goredis.Cmd }

// NoRetry implements goredis.Cmder.
func (onceCmd) NoRetry() bool { return true }

// Claimed is the result of one claim.
type Claimed struct {
	Entries   []goredis.XMessage
	Delivered map[string]int64 // per id: how often an entry was delivered, this time included
	Deleted   []string         // were pending, but their entries are no longer in the stream
	Took      time.Duration    // of the command
}

// claim claims at most maxScriptIDs entries that are idle for minIdle and pending to from (empty:
// any consumer). It adds deliveries to their delivery counts.
//
// The client never re-sends it: a repeated claim finds nothing, and hides that the first reply was
// lost, with its entries. After an error that is no reply (see IsReply) the claim may have
// succeeded.
func (c Consumer) claim(ctx context.Context, from string, minIdle time.Duration, deliveries int, ids []string) (Claimed, error) {
	args := withIDs(ids, c.Group, c.Name, minIdle.Milliseconds(), from, deliveries)
	send := func(command, script string) *goredis.Cmd {
		cmd := onceCmd{goredis.NewCmd(ctx, append([]any{command, script, 1, c.Stream}, args...)...)}
		cmd.SetFirstKeyPos(3)
		_ = c.Client.Process(ctx, cmd) // the command has the error too
		return cmd.Cmd
	}
	out, start := Claimed{Delivered: map[string]int64{}}, time.Now()
	cmd := send("evalsha", goredis.NewScript(claimSource).Hash())
	if goredis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = send("eval", claimSource)
	}
	reply, err := cmd.Slice()
	out.Took = time.Since(start)
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
