package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// Addresses of the list of streams, and of the entries of one of them.
const (
	streamsPage = "streams"
	streamPage  = "stream"
)

// foundKind is the kind of sources that find their streams while they run.
const foundKind = "elastic-streams"

// manyOf begins the part of a name that differs between streams, as in orders:<id>.
const manyOf = "<"

// shownEntries bounds the entries that a page shows.
const shownEntries = 20

const finishedNote = " Entries that all groups have finished are deleted."

func (p *Plugin) pageOfStream() console.Page {
	return console.Page{Path: streamPage, Title: "Stream", Hidden: true, Panels: []console.Panel{
		{Name: "entry", Title: "Entry", Still: true, Values: []string{"stream", "entry"}, Load: p.showEntry},
		{Name: "pending", Title: "Pending entries, the oldest first", Every: streamsEvery, Values: []string{"stream"}, Load: p.showPending},
		{Name: "entries", Title: "Entries, the newest first", Still: true, Values: []string{"stream", "from", "entry"}, Load: p.showEntries},
	}}
}

func streamLink(stream, name, id string) string {
	values := url.Values{"stream": {stream}}
	if id != "" {
		values.Set(name, id)
	}
	return streamPage + "?" + values.Encode()
}

// placeLink leads to the entries of a stream, and from a name that stands for many streams to the list.
func (p *Plugin) placeLink(reg *pipeline.Registry, at pipeline.Endpoint) string {
	if slices.Contains(p.knownStreams(reg), at.Name) {
		return streamLink(at.Name, "", "")
	}
	if _, reads := p.clientOf(reg, at.Name); reads {
		return streamsPage
	}
	return ""
}

// elsewhere is a source whose streams may be at a server of their own.
type elsewhere interface {
	// Client returns that of the server, or nil while the process does not run.
	Client() goredis.UniversalClient
}

// clientOf returns the client of the server that has the stream. reads is false if no route reads it: what else a
// server has is nothing that the console shows.
func (p *Plugin) clientOf(reg *pipeline.Registry, stream string) (c goredis.UniversalClient, reads bool) {
	if slices.Contains(p.knownStreams(reg), stream) {
		return p.Client(), true
	}
	for _, r := range reg.Routes() {
		at := r.From.Describe()
		prefix, _, many := strings.Cut(at.Name, manyOf)
		if many && prefix != "" && strings.HasPrefix(stream, prefix) && (at.Kind == poll.Kind || at.Kind == foundKind) {
			if from, ok := r.From.(elsewhere); ok {
				return from.Client(), true
			}
			return p.Client(), true
		}
	}
	return nil, false
}

// findStream is the form for streams that are not in the list, such as those of campaigns.
func findStream(_ context.Context, q console.Query) (console.Block, error) {
	if !slices.ContainsFunc(q.Registry.Routes(), func(r pipeline.Route) bool { return r.From.Describe().Kind == foundKind }) {
		return nil, console.ErrNothing
	}
	return console.Find{Page: streamPage, Fields: []operate.Field{{Name: "stream", Required: true}}}, nil
}

// streamOf returns the stream of a page and the client, or what the panel shows in its place.
func (p *Plugin) streamOf(q console.Query) (stream string, c goredis.UniversalClient, instead console.Block, err error) {
	stream = q.Text("stream")
	c, reads := p.clientOf(q.Registry, stream)
	switch {
	case stream == "":
		return "", nil, console.Text("Choose a stream on the page Streams."), nil
	case !reads:
		return "", nil, console.Text(fmt.Sprintf("No route of this instance reads a stream %q.", stream)), nil
	case c == nil:
		return "", nil, nil, errNotRunning
	}
	return stream, c, nil, nil
}

// showEntries shows a page of entries, from the newest one or from the id in the address to older ones.
func (p *Plugin) showEntries(ctx context.Context, q console.Query) (console.Block, error) {
	stream, c, instead, err := p.streamOf(q)
	if instead != nil || err != nil {
		return instead, err
	}
	from := q.Text("from")
	if from == "" {
		from = "+"
	}
	found, err := c.XRevRangeN(ctx, stream, from, "-", shownEntries+1).Result()
	if err != nil {
		return nil, answered(fmt.Errorf("redis: read the entries of %s from %s: %w", stream, from, err))
	}
	t := console.Table{Columns: console.Columns("Entry", "Written", "Key", "Message", "Bytes"), Empty: "The stream has no entries here." + finishedNote}
	var older console.Blocks
	if len(found) > shownEntries {
		next := found[shownEntries].ID
		found = found[:shownEntries]
		older = console.Blocks{console.Stats{{Name: "Older entries", Cell: console.Word("from " + next).At(streamLink(stream, "from", next))}}}
	}
	for _, e := range found {
		m, err := entry.Decode(e)
		var size *int64 // of fields that are no message nobody knows it
		if err == nil {
			size = new(int64(len(m.Payload)))
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(e.ID).At(streamLink(stream, "entry", e.ID)), console.Moment(timeOf(e.ID)), console.Word(m.Metadata.Get(pipeline.MetaKey)),
			console.Word(m.UUID), console.Number(size),
		})
	}
	return append(console.Blocks{console.Find{Page: streamPage, Fields: []operate.Field{
		{Name: "stream", Default: stream, Required: true}, {Name: "entry", Default: q.Text("entry"), Required: true},
	}}, t}, older...), nil
}

// showPending shows which consumers have the oldest entries that were delivered and not acknowledged.
func (p *Plugin) showPending(ctx context.Context, q console.Query) (console.Block, error) {
	stream, c, instead, err := p.streamOf(q)
	if instead != nil || err != nil {
		return instead, err
	}
	groups, err := groupsOf(ctx, c, stream)
	if err != nil {
		return nil, err
	}
	t := console.Table{Columns: console.Columns("Group", "Entry", "Consumer", "Delivered before", "Deliveries"), Empty: "No entry is pending: each one that was delivered has been acknowledged."}
	for _, g := range groups {
		found, err := c.XPendingExt(ctx, &goredis.XPendingExtArgs{Stream: stream, Group: g.Name, Start: "-", End: "+", Count: shownEntries}).Result()
		if err != nil {
			return nil, answered(fmt.Errorf("redis: read the pending entries of the group %s of %s: %w", g.Name, stream, err))
		}
		for _, e := range found {
			t.Rows = append(t.Rows, []console.Cell{
				console.Word(g.Name), console.Word(e.ID).At(streamLink(stream, "entry", e.ID)), console.Word(e.Consumer), console.Word(console.Short(e.Idle)), console.Count(e.RetryCount),
			})
		}
		if more := g.Pending - int64(len(found)); more > 0 {
			t.Note = strings.TrimSpace(fmt.Sprintf("%s The group %s has %d more.", t.Note, g.Name, more))
		}
	}
	return t, nil
}

// showEntry shows one entry, and where each group is with it.
func (p *Plugin) showEntry(ctx context.Context, q console.Query) (console.Block, error) {
	id := q.Text("entry")
	if id == "" {
		return nil, console.ErrNothing
	}
	stream, c, instead, err := p.streamOf(q)
	if instead != nil || err != nil {
		return instead, err
	}
	found, err := c.XRangeN(ctx, stream, id, id, 1).Result()
	if err != nil {
		return nil, answered(fmt.Errorf("redis: read the entry %s of %s: %w", id, stream, err))
	}
	if len(found) == 0 {
		return console.Text(fmt.Sprintf("The stream %s has no entry %q.", stream, id) + finishedNote), nil
	}
	e := found[0]
	m, err := entry.Decode(e)
	record := console.Record{Fields: console.Stats{
		{Name: "Stream", Cell: console.Word(stream)}, {Name: "Entry", Cell: console.Word(e.ID)}, {Name: "Written", Cell: console.Moment(timeOf(e.ID))},
	}}
	if err != nil {
		fields, err := json.Marshal(e.Values)
		if err != nil {
			return nil, fmt.Errorf("redis: encode the fields of the entry %s of %s: %w", e.ID, stream, err)
		}
		record.Folds = []console.Fold{{Title: "Fields", Payload: fields}}
	} else {
		headers := maps.Clone(map[string]string(m.Metadata))
		delete(headers, pipeline.MetaKey)
		record.Fields = append(record.Fields, console.Stat{Name: "Message", Cell: console.Word(m.UUID)}, console.Stat{Name: "Key", Cell: console.Word(m.Metadata.Get(pipeline.MetaKey))})
		record.Folds = []console.Fold{{Title: "Headers", Headers: headers}, {Title: "Payload", Payload: m.Payload}}
	}
	groups, err := groupsOf(ctx, c, stream)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		where, err := whereIs(ctx, c, stream, e.ID, g)
		if err != nil {
			return nil, err
		}
		record.Fields = append(record.Fields, console.Stat{Name: "Group " + g.Name, Cell: where})
	}
	return record, nil
}

// groupsOf returns the groups of a stream, none of one that does not exist.
func groupsOf(ctx context.Context, c goredis.UniversalClient, stream string) ([]goredis.XInfoGroup, error) {
	groups, err := c.XInfoGroups(ctx, stream).Result()
	if err != nil && !poll.IsNoKey(err) {
		return nil, answered(fmt.Errorf("redis: read the groups of %s: %w", stream, err))
	}
	return groups, nil
}

// whereIs says what a group has done with an entry.
func whereIs(ctx context.Context, c goredis.UniversalClient, stream, id string, g goredis.XInfoGroup) (console.Cell, error) {
	pending, err := c.XPendingExt(ctx, &goredis.XPendingExtArgs{Stream: stream, Group: g.Name, Start: id, End: id, Count: 1}).Result()
	switch {
	case err != nil:
		return console.Cell{}, answered(fmt.Errorf("redis: ask the group %s of %s for the entry %s: %w", g.Name, stream, id, err))
	case len(pending) > 0:
		e := pending[0]
		return console.Word(fmt.Sprintf("pending; deliveries: %d, the last one to %s, %s ago", e.RetryCount, e.Consumer, console.Short(e.Idle))), nil
	case compareIDs(g.LastDeliveredID, id) < 0:
		return console.Word("waits"), nil
	default:
		return console.Word("finished, or written before the group was made"), nil
	}
}
