package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Shard is a line of the output of shards.
type Shard struct {
	Domain string `json:"domain"`
	Shard  int    `json:"shard"`
	Stream string `json:"stream"`
	// Owner is the instance that reads the shard. Empty: none.
	Owner string    `json:"owner,omitempty"`
	Until time.Time `json:"until,omitzero"` // end of its lease, by the clock of Redis
	// Length is the number of entries, Pending that of the delivered ones without an ack.
	Length  int64 `json:"length"`
	Pending int64 `json:"pending"`
	// Problem says why the shard is not read or takes no entries. Empty: none was found.
	Problem string `json:"problem,omitempty"`
}

// shards is the output of shards --json.
type shards struct {
	Shards []Shard `json:"shards"`
}

func (e Deps) shards() operate.Report {
	return operate.Report{
		About: operate.About{
			Name: "jobs shards", Short: "Show owner, lease, length and pending entries of each shard",
			Long: `Show owner, lease, length and pending entries of each shard.

A shard with a problem has a line below the table: a key that is no stream, ids that are ahead
of the clock or used up, or a stream that no router reads because its producer has
another number of shards.`,
			Examples: []string{"jobs shards --profile router", "jobs shards scan --json --profile router"},
			Fields:   []operate.Field{{Name: "domain", Type: operate.List, Arguments: true, Help: "only of this `domain`"}},
			Register: e.Register,
		},
		Read: func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			list, err := e.Jobs().Shards(ctx, in.List("domain")...)
			if err != nil {
				return operate.Answer{}, err
			}
			return shards{list}.answer(), nil
		},
	}
}

// Shards returns the shards of some domains, or of all. It reads those of a domain in one pipeline.
func (o Jobs) Shards(ctx context.Context, names ...string) ([]Shard, error) {
	domains, err := o.selected(names)
	if err != nil {
		return nil, err
	}
	list := []Shard{}
	for _, d := range domains {
		name, _, _ := strings.Cut(d.Prefix, ":")
		// Those of the second half are of a producer that has more shards.
		calls := make([]*redis.Call, 0, 3*2*d.Shards)
		for i := range 2 * d.Shards {
			stream := d.Stream(i)
			calls = append(calls, redis.Measure(stream), redis.Command("XPENDING", stream, d.Group), redis.Command("HMGET", redis.MetaKey(stream), "owner", "until"))
		}
		_ = o.OfShards.Do(ctx, calls...) // each call has its error
		for i := range 2 * d.Shards {
			measured, err := redis.MeasuredBy(calls[3*i])
			s := Shard{Domain: name, Shard: i, Stream: d.Stream(i), Length: measured.Entries}
			foreign := errors.Is(err, redis.ErrNoStream)
			switch {
			case err != nil && !foreign:
				return list, err
			case i >= d.Shards && s.Length == 0:
				continue
			case i >= d.Shards:
				s.Problem = fmt.Sprintf("no router reads it: plugins.redis.domains has %d shards, and its producer more", d.Shards)
			case foreign:
				s.Problem = "the key is no stream: delete or rename it"
			default:
				if s.Problem = measured.Problem(); s.Problem != "" {
					s.Problem += " (last id " + measured.LastID + ")"
				}
				if err := s.takeReplies(calls[3*i+1], calls[3*i+2]); err != nil {
					return list, err
				}
			}
			list = append(list, s)
		}
	}
	return list, nil
}

func (s *Shard) takeReplies(pending, lease *redis.Call) error {
	summary, err := pending.List()
	switch {
	case err != nil && !poll.IsNoGroup(err): // no group, no pending entry
		return err
	case len(summary) > 0:
		s.Pending, _ = summary[0].(int64)
	}
	fields, err := lease.Texts()
	if err != nil {
		return err
	}
	if len(fields) == 2 && fields[0] != "" {
		s.Owner = fields[0]
		if ms, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			s.Until = time.UnixMilli(ms).UTC()
		}
	}
	return nil
}

func (l shards) answer() operate.Answer {
	a := operate.Answer{Value: l}
	t := operate.Table{Columns: []string{"SHARD", "OWNER", "LEASE UNTIL", "LENGTH", "PENDING"}}
	for _, s := range l.Shards {
		owner, until := "none", ""
		if s.Owner != "" {
			owner, until = s.Owner, s.Until.Format(time.RFC3339)
		}
		t.Rows = append(t.Rows, []string{s.Stream, owner, until, app.Thousands(s.Length), app.Thousands(s.Pending)})
		if s.Problem != "" {
			a.Notes = append(a.Notes, s.Stream+": "+s.Problem)
		}
	}
	a.Tables = []operate.Table{t}
	return a
}
