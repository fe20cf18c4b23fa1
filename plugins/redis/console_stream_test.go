package redis

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// held is a route whose handler waits, and which has few messages at a time.
type held struct {
	p    *Plugin
	name string
	open chan struct{} // closed: handlers return
}

func (held) Name() string { return "held" }

func (h held) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "held", From: h.p.Source(h.name, "g"), Flow: pipeline.Flow{MaxInFlight: 2}, Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(*message.Message) ([]*message.Message, error) {
			<-h.open
			return nil, nil
		},
	})
	return nil
}

// address returns the page and the values of a link.
func address(t *testing.T, c console.Cell) (page string, values operate.Input) {
	t.Helper()
	page, query, _ := strings.Cut(c.Link, "?")
	parsed, err := url.ParseQuery(query)
	require.NoError(t, err)
	return page, operate.Input(parsed)
}

// Case: "why is this entry not handled?" A person goes from the table of streams to the entry.
func TestThePageOfAStream(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		p, c, name := retryPlugin(t, s)
		name += `:a b&"c`
		h := held{p, name, make(chan struct{})}
		reg := pipelinetest.Start(t, p, h)
		pages := map[string]console.Page{}
		for _, page := range p.Console() {
			pages[page.Path] = page
		}
		show := func(panel, page string, in operate.Input) console.Block {
			t.Helper()
			for _, one := range pages[page].Panels {
				if one.Name == panel {
					block, err := one.Load(t.Context(), one.QueryOf(in, reg))
					require.NoError(t, err)
					return block
				}
			}
			require.Fail(t, "no such panel", panel)
			return nil
		}
		for i := range 25 {
			m := message.NewMessage(fmt.Sprint("m", i), fmt.Appendf(nil, `{"order": %d}`, i))
			m.Metadata.Set("source", "web")
			m.Metadata.Set(pipeline.MetaKey, "ann")
			require.NoError(t, p.Sink(name).Publish(t.Context(), m))
		}
		redistest.Eventually(t, "some are pending", func() bool { return c.XPending(t.Context(), name, "g").Val().Count >= 2 })

		streams, _ := show("streams", "streams", nil).(console.Table)
		page, in := address(t, streams.Rows[0][0])
		require.Equal(t, streamPage, page)
		listed, _ := show("entries", page, in).(console.Blocks)
		entries, _ := listed[1].(console.Table)
		require.Len(t, entries.Rows, shownEntries)
		older, _ := listed[2].(console.Stats)
		_, next := address(t, older[0].Cell)
		listed, _ = show("entries", page, next).(console.Blocks)
		oldest, _ := listed[1].(console.Table)
		require.Len(t, oldest.Rows, 5)
		require.Len(t, listed, 2, "there is nothing older")
		require.Equal(t, []any{"ann", "m0", int64(12)}, []any{oldest.Rows[4][2].Data, oldest.Rows[4][3].Data, oldest.Rows[4][4].Data})

		pending, _ := show("pending", page, in).(console.Table)
		require.GreaterOrEqual(t, len(pending.Rows), 2)
		require.Equal(t, oldest.Rows[4][0].Text, pending.Rows[0][1].Text)
		_, first := address(t, pending.Rows[0][1])
		_, last := address(t, entries.Rows[0][0])
		_, err := pages[page].Panels[0].Load(t.Context(), console.Query{Input: in, Registry: reg})
		require.ErrorIs(t, err, console.ErrNothing, "no entry was chosen")
		entry := func(in operate.Input, group string) (record console.Record, state string) {
			t.Helper()
			record, _ = show("entry", page, in).(console.Record)
			for _, field := range record.Fields {
				if field.Name == "Group "+group {
					state = field.Cell.Text
				}
			}
			return record, state
		}
		record, state := entry(first, "g")
		require.Regexp(t, `^pending; deliveries: 1, the last one to \S+, \S+ ago$`, state)
		require.JSONEq(t, `{"order": 0}`, string(record.Folds[1].Payload))
		require.Equal(t, map[string]string{"source": "web"}, record.Folds[0].Headers)
		_, state = entry(last, "g")
		require.Equal(t, "waits", state)
		require.NoError(t, c.XGroupCreate(t.Context(), name, "later", last.Text("entry")).Err())
		_, state = entry(last, "later")
		require.Equal(t, "finished, or written before the group was made", state)

		odd := c.XAdd(t.Context(), &goredis.XAddArgs{Stream: name, Values: []any{"token", "x"}}).Val()
		record, _ = entry(operate.Input{"stream": {name}, "entry": {odd}}, "g")
		listed, _ = show("entries", page, in).(console.Blocks)
		entries, _ = listed[1].(console.Table)
		require.Equal(t, []any{odd, nil}, []any{entries.Rows[0][0].Data, entries.Rows[0][4].Data}, "what is unknown is not 0")
		require.JSONEq(t, `{"token": "x"}`, string(record.Folds[0].Payload), "masked by the console, as a payload")

		close(h.open)
		redistest.Eventually(t, "nothing is pending", func() bool {
			pending, _ = show("pending", page, in).(console.Table)
			return len(pending.Rows) == 0
		})
		require.Equal(t, console.Text(`The stream x has no entry "1-1". Entries that all groups have finished are deleted.`),
			console.Text(strings.Replace(fmt.Sprint(show("entry", page, operate.Input{"stream": {name}, "entry": {"1-1"}})), name, "x", 1)))
	})
}

// A viewer sees the streams of routes, and nothing else that the server has.
func TestOnlyStreamsOfRoutesHaveAPage(t *testing.T) {
	t.Parallel()
	p := New()
	p.cfg.Domains = []DomainConfig{{Prefix: "jobs", Shards: 2}}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, p, held{p, "orders", nil}, ends{
		{Kind: "redis-stream", Name: "room:<0…9>"}, {Kind: "elastic-streams", Name: "paid:A:<id>"}, {Kind: "kafka", Name: "clicks:<id>"},
		{Kind: "redis-stream", Name: "<not in plugins.redis.domains>"}, {Kind: "redis-stream", Name: "jobs-audit"},
	})
	require.NoError(t, err)
	for stream, shown := range map[string]bool{
		"orders": true, "jobs:1": true, "jobs-audit": true, "room:7": true, "paid:A:77": true,
		"": false, "order": false, "orders:2": false, "jobs:2": false, "paid:B:77": false, "clicks:1": false, "sessions": false,
	} {
		_, reads := p.clientOf(reg, stream)
		require.Equal(t, shown, reads, stream)
	}
	for at, link := range map[pipeline.Endpoint]string{
		{Kind: "redis-stream", Name: "orders"}: "stream?stream=orders", {Kind: "redis-stream", Name: "jobs:1"}: "stream?stream=jobs%3A1",
		{Kind: "redis-stream", Name: "room:<0…9>"}: "streams", {Kind: "elastic-streams", Name: "paid:A:<id>"}: "streams",
		{Kind: "redis-stream", Name: "sessions"}: "", {Kind: "redis-stream", Name: "sessions:<id>"}: "",
	} {
		require.Equal(t, link, p.placeLink(reg, at), "the box of %s", at.Name)
	}
	find, err := findStream(t.Context(), console.Query{Registry: reg})
	require.NoError(t, err)
	require.Equal(t, map[string]any{"page": "stream", "fields": []string{"stream"}}, find.JSON())
	for _, panel := range p.pageOfStream().Panels {
		block, err := panel.Load(t.Context(), panel.QueryOf(operate.Input{"stream": {"sessions"}, "entry": {"1-1"}}, reg))
		require.NoError(t, err)
		require.Equal(t, console.Text(`No route of this instance reads a stream "sessions".`), block)
	}
}

// ends is a plugin with a route from each of some ends.
// A source with a server of its own has its entries there.
func TestThePageOfAStreamReadsTheServerOfItsSource(t *testing.T) {
	t.Parallel()
	other := redistest.Mini(t).Client(t)
	reg, err := pipeline.NewRegistry(pipeline.Env{}, apart{other})
	require.NoError(t, err)
	id := other.XAdd(t.Context(), &goredis.XAddArgs{Stream: "paid:7", Values: []any{"message", "x"}}).Val()
	block, err := New().showEntries(t.Context(), console.Query{Input: operate.Input{"stream": {"paid:7"}}, Registry: reg})
	require.NoError(t, err)
	blocks, _ := block.(console.Blocks)
	entries, _ := blocks[1].(console.Table)
	require.Len(t, entries.Rows, 1)
	require.Equal(t, id, entries.Rows[0][0].Text)
}

// apart is a plugin with a source of another server.
type apart struct{ client goredis.UniversalClient }

func (apart) Name() string { return "apart" }

func (a apart) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "apart", From: apartSource{end{Kind: foundKind, Name: "paid:<id>"}, a.client}, Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
	})
	return nil
}

type apartSource struct {
	end
	client goredis.UniversalClient
}

func (s apartSource) Client() goredis.UniversalClient { return s.client }

type ends []pipeline.Endpoint

func (ends) Name() string { return "ends" }

func (es ends) Register(r *pipeline.Registry) error {
	for i, e := range es {
		r.Route(pipeline.Route{
			Name: fmt.Sprint("end", i), From: end(e), Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
			Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
		})
	}
	return nil
}

type end pipeline.Endpoint

func (e end) Describe() pipeline.Endpoint { return pipeline.Endpoint(e) }
func (end) Open(context.Context, pipeline.Flow) (pipeline.Subscription, error) {
	return nil, errNotRunning
}
