package redis

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Console implements console.Contributor: the streams that this instance knows with their entries, and the instances.
func (p *Plugin) Console() []console.Page {
	return []console.Page{
		{Path: streamsPage, Title: "Streams", Order: 20, Places: []string{poll.Kind, foundKind}, PlaceLink: p.placeLink, Panels: []console.Panel{
			{Name: "streams", Title: "Streams and their groups", Every: streamsEvery, Load: p.showStreams},
			{Name: "find", Title: "Find a stream that a route has found by itself", Load: findStream},
		}},
		p.pageOfStream(),
		{Path: "instances", Title: "Instances", Order: 40, Panels: []console.Panel{
			{Name: "instances", Title: "Instances", Load: p.showInstances, Actions: []string{levelAction, drainAction}},
		}},
	}
}

// What a page shows at most. A stream takes two commands, so the streams are read again at most so often.
const (
	shownStreams   = 200
	shownInstances = 200
	streamsEvery   = 5 * time.Second
)

var errNotRunning = errors.New("redis: the service of this instance does not run")

// knownStreams returns the streams of the domains and of the routes, sorted.
func (p *Plugin) knownStreams(reg *pipeline.Registry) []string {
	known := map[string]bool{}
	for _, d := range p.cfg.Domains {
		for shard := range d.Shards {
			known[d.Stream(shard)] = true
		}
	}
	domains := p.cfg.Domains
	for _, r := range reg.Routes() {
		at := r.From.Describe()
		isDomain := slices.ContainsFunc(domains, func(d DomainConfig) bool { return isShard(d.Prefix, at.Name) })
		if at.Kind == poll.Kind && !isDomain && !strings.Contains(at.Name, manyOf) {
			known[at.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(known))
}

func (p *Plugin) showStreams(ctx context.Context, q console.Query) (console.Block, error) {
	c := p.Client()
	if c == nil {
		return nil, errNotRunning
	}
	streams := p.knownStreams(q.Registry)
	t := console.Table{
		Columns: console.Columns("Stream", "Entries", "Group", "Consumers", "Waiting", "Pending", "Last delivered"),
		Empty:   "No route reads a Redis stream by its name, and plugins.redis.domains is empty. Streams that a plugin makes when it needs them, such as those of campaigns, are not in this table.",
	}
	if len(streams) > shownStreams {
		t.Note = "Only the first 200 streams are shown."
		streams = streams[:shownStreams]
	}
	pipe := c.Pipeline()
	groups, lengths := make([]*goredis.XInfoGroupsCmd, len(streams)), make([]*goredis.IntCmd, len(streams))
	for i, stream := range streams {
		groups[i], lengths[i] = pipe.XInfoGroups(ctx, stream), pipe.XLen(ctx, stream)
	}
	if _, err := pipe.Exec(ctx); err != nil && !poll.IsReply(err) {
		return nil, answered(err)
	}
	var checks console.Checks
	for i, stream := range streams {
		name := console.Word(stream).At(streamLink(stream, "", ""))
		n, err := lengths[i].Result()
		if err != nil {
			checks = append(checks, operate.Check{Name: stream, Level: operate.Fail, Text: err.Error()})
			continue
		}
		found, err := groups[i].Result()
		if err != nil && !poll.IsNoKey(err) {
			checks = append(checks, operate.Check{Name: stream, Level: operate.Fail, Text: err.Error()})
		}
		if len(found) == 0 {
			t.Rows = append(t.Rows, []console.Cell{name, console.Count(n), console.Word("–"), {}, {}, {}, {}})
		}
		for _, g := range found {
			var waiting *int64
			if g.Lag >= 0 { // the server does not know it after entries were deleted from the middle
				waiting = &g.Lag
			}
			t.Rows = append(t.Rows, []console.Cell{
				name, console.Count(n), console.Word(g.Name), console.Count(g.Consumers), console.Number(waiting),
				console.Count(g.Pending), console.Word(g.LastDeliveredID),
			})
		}
	}
	if len(checks) > 0 {
		return console.Blocks{t, checks}, nil
	}
	return t, nil
}

var _ console.Contributor = (*Plugin)(nil)
