package eventrouter

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// see returns what programs get of a panel.
func see(t *testing.T, p *Plugin, path, panel string, in operate.Input) string {
	t.Helper()
	for _, page := range p.Console() {
		require.NoError(t, page.Validate())
		i := slices.IndexFunc(page.Panels, func(one console.Panel) bool { return one.Name == panel })
		if page.Path != path || i < 0 {
			continue
		}
		block, err := page.Panels[i].Load(t.Context(), page.Panels[i].QueryOf(in, nil))
		require.NoError(t, err)
		text, err := json.Marshal(block.JSON())
		require.NoError(t, err)
		return string(text)
	}
	require.Fail(t, "no such panel", path+" "+panel)
	return ""
}

// The page of a job has its state, each event of its log, and the numbers that are missing. Its action is the
// command, and leaves a trace on the page.
func TestThePageOfAJob(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		p, shared := newPlugin()
		client := s.Client(t)
		name := redistest.Prefix(t, client)
		shared.Addrs = []string{s.Addr}
		shared.Domains = []redis.DomainConfig{{Prefix: name + ":events", Shards: 2, Group: "g", Fields: true, Exclusive: true}}
		p.config.Domains = []string{name + ":events"}
		own := shared.ClientConfig
		server := redis.New().Server(&own)
		require.NoError(t, server.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
		p.logs, p.shards = server, server
		in := operate.Input{"job": {name + "/42"}}

		require.Contains(t, see(t, p, "jobs/job", "job", nil), "Give a job as DOMAIN/JOB_ID")
		require.Contains(t, see(t, p, "jobs/job", "job", operate.Input{"job": {"other/42"}}), "no domain")
		require.Contains(t, see(t, p, "jobs/job", "job", in), "has no state and no log: it has not begun")

		add := func(seq int64, stage, data string) {
			now := fmt.Sprint(client.Time(t.Context()).Val().UnixMilli(), "-0")
			e := event.Event{Domain: name, JobID: "42", Stage: stage, Seq: seq, StreamID: now, Data: json.RawMessage(data)}
			require.NoError(t, joblog.New(server, p.config.Logs, p.config.Stages).Append(t.Context(), name, [][]event.Event{{e}})[0].Err)
		}
		add(1, "fetch", `{"percent":10}`)
		add(4, "scan", `"`+strings.Repeat("é", shownData)+`"`)
		add(6, "done", "")
		job := see(t, p, "jobs/job", "job", in)
		require.Contains(t, job, `"stage":"done"`)
		require.Contains(t, job, `"ended":true,"events_in_the_log":3`)
		require.Contains(t, job, `"missing_numbers":3`)
		require.Contains(t, job, `"page_for_its_user":"http://`)
		type row struct {
			Number any
			Stage  string
			Data   string
		}
		var rows []row
		blocks := []any{new(map[string]any), &rows}
		require.NoError(t, json.Unmarshal([]byte(see(t, p, "jobs/job", "job", in)), &blocks))
		var numbers []string
		for _, row := range rows {
			numbers = append(numbers, fmt.Sprint(row.Number, " ", row.Stage))
		}
		require.Equal(t, []string{"6 done", "5 not in the log", "4 scan", "2 to 3 not in the log", "1 fetch"}, numbers)
		require.Less(t, len(rows[2].Data), shownData+5)
		require.True(t, strings.HasSuffix(rows[2].Data, "é…"), "it is cut between two characters: %s", rows[2].Data)

		late := event.Event{Domain: name, JobID: "late", Stage: "scan", Seq: 3, StreamID: fmt.Sprint(client.Time(t.Context()).Val().UnixMilli(), "-0")}
		require.NoError(t, joblog.New(server, p.config.Logs, p.config.Stages).Append(t.Context(), name, [][]event.Event{{late}})[0].Err)
		require.Contains(t, see(t, p, "jobs/job", "job", operate.Input{"job": {name + "/late"}}), `"number":"1 to 2","stage":"not in the log"`)

		actions := p.Operations().Actions
		require.Equal(t, "jobs reset", actions[0].Name)
		preview, err := actions[0].Preview(t.Context(), nil, in)
		require.NoError(t, err)
		require.Contains(t, preview.Lines[0], "would be reset")
		require.Contains(t, see(t, p, "jobs/job", "job", in), `"stage":"done"`, "a preview changes nothing")
		_, err = actions[0].Do(t.Context(), nil, in, operate.Use{Who: "eve", Why: "a retry"})
		require.NoError(t, err)
		require.Regexp(t, "it was reset at .* by eve: a retry", see(t, p, "jobs/job", "job", in))
		add(1, "again", "")
		require.Regexp(t, `"last_reset":".* by eve: a retry"`, see(t, p, "jobs/job", "job", in))
	})
}

// The page of the shards says which are read, and what is wrong with the others.
func TestThePageOfTheShards(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		p, shared := newPlugin()
		client := s.Client(t)
		domain := redis.DomainConfig{Prefix: redistest.Prefix(t, client) + ":events", Shards: 4, Group: "g", Fields: true, Exclusive: true}
		shared.Domains, p.config.Domains = []redis.DomainConfig{domain}, []string{domain.Prefix}
		own := shared.ClientConfig
		own.Addrs = []string{s.Addr}
		server := redis.New().Server(&own)
		require.NoError(t, server.Start(t.Context()))
		t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
		p.logs, p.shards = server, server
		for i := range 2 {
			require.NoError(t, client.XAdd(t.Context(), &goredis.XAddArgs{Stream: domain.Stream(i), Values: []string{"a", "b"}}).Err())
		}
		require.NoError(t, client.HSet(t.Context(), redis.MetaKey(domain.Stream(0)), "owner", "router-1", "until", client.Time(t.Context()).Val().UnixMilli()+60_000).Err())
		require.NoError(t, client.Set(t.Context(), domain.Stream(3), "text", 0).Err())
		var rows []struct{ Owner, State string }
		require.NoError(t, json.Unmarshal([]byte(see(t, p, "jobs", "shards", nil)), &rows))
		require.Equal(t, []struct{ Owner, State string }{
			{"router-1", "is read"}, {"", "no router reads it: start a process with the role router"}, {"", "is not read, and is empty"},
			{"", "the key is no stream: delete or rename it"},
		}, rows)
	})
}
