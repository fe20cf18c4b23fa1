package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline/app"
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

func (c commands) shards() *cobra.Command {
	return c.h.JSONFlag(&cobra.Command{
		Use:   "shards [DOMAIN…]",
		Short: "Show owner, lease, length and pending entries of each shard",
		Long: `Show owner, lease, length and pending entries of each shard.

A shard with a problem has a line below the table: a key that is no stream, ids that are ahead
of the clock or used up, or a stream that no router reads because its producer has
another number of shards.`,
		Example: "  millrace jobs shards --profile router\n  millrace jobs shards scan --json --profile router",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd, func(ctx context.Context, o opened) error {
				domains, err := o.selected(args)
				if err != nil {
					return err
				}
				list, err := o.readShards(ctx, domains)
				if err != nil {
					return err
				}
				return c.h.Show(cmd, list, list.write)
			})
		},
	})
}

func (o opened) readShards(ctx context.Context, domains []redis.DomainConfig) (shards, error) {
	list := shards{Shards: []Shard{}}
	for _, d := range domains {
		name, _, _ := strings.Cut(d.Prefix, ":")
		for i := range 2 * d.Shards {
			s := Shard{Domain: name, Shard: i, Stream: d.Stream(i)}
			measure := redis.Measure(s.Stream)
			pending := redis.Command("XPENDING", s.Stream, d.Group)
			lease := redis.Command("HMGET", redis.MetaKey(s.Stream), "owner", "until")
			_ = o.shards.Do(ctx, measure, pending, lease) // each call has its error
			measured, err := redis.MeasuredBy(measure)
			s.Length = measured.Entries
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
				if err := s.read(pending, lease); err != nil {
					return list, err
				}
			}
			list.Shards = append(list.Shards, s)
		}
	}
	return list, nil
}

func (s *Shard) read(pending, lease *redis.Call) error {
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

func (l shards) write(out io.Writer) error {
	w := app.Table(out)
	fmt.Fprintln(w, "SHARD\tOWNER\tLEASE UNTIL\tLENGTH\tPENDING")
	for _, s := range l.Shards {
		owner, until := "none", ""
		if s.Owner != "" {
			owner, until = app.Printable(s.Owner), s.Until.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Stream, owner, until, app.Thousands(s.Length), app.Thousands(s.Pending))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range l.Shards {
		if s.Problem != "" {
			fmt.Fprintf(out, "%s: %s\n", s.Stream, s.Problem)
		}
	}
	return nil
}
