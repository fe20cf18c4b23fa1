package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
	// Problem is what is wrong with the ids of the stream. Empty: nothing.
	Problem string `json:"problem,omitempty"`
}

// shards is the output of shards --json.
type shards struct {
	Shards []Shard `json:"shards"`
}

func (c commands) shards() *cobra.Command {
	return c.h.JSONFlag(&cobra.Command{
		Use:     "shards [DOMAIN…]",
		Short:   "Show owner, lease, length and pending entries of each shard",
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
		for i := range d.Shards {
			list.Shards = append(list.Shards, Shard{Domain: name, Shard: i, Stream: d.Stream(i)})
			s := &list.Shards[len(list.Shards)-1]
			length := redis.Measure(s.Stream)
			pending := redis.Command("XPENDING", s.Stream, d.Group)
			lease := redis.Command("HMGET", redis.MetaKey(s.Stream), "owner", "until")
			_ = o.shards.Do(ctx, length, pending, lease) // each call has its error
			if err := s.read(length, pending, lease); err != nil {
				return list, err
			}
		}
	}
	return list, nil
}

func (s *Shard) read(length, pending, lease *redis.Call) error {
	measured, err := redis.MeasuredBy(length)
	if err != nil {
		return err
	}
	if s.Length, s.Problem = measured.Entries, measured.Problem(); s.Problem != "" {
		s.Problem += " (last id " + measured.LastID + ")"
	}
	summary, err := pending.List()
	switch {
	case err != nil && !strings.Contains(err.Error(), "NOGROUP"): // no group, no pending entry
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
