package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/checker"
	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	jobwatch "github.com/millrace-io/millrace/handlers/eventrouter/watch"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// A foreign producer repeats and reorders numbers, leaves one out, and gives one to two events. It
// goes on after the end of a job, and uses the same job in two domains. The watchers were there
// before the job. Entries that are no events become dead letters, and can be replayed.
func TestAForeignProducer(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	s := startJobs(t, servers.RedisAddr(), "foreign", "MILLRACE__PLUGINS__EVENTROUTER__GAP_WAIT=2s")
	client := goredis.NewClient(&goredis.Options{Addr: servers.RedisAddr()})
	defer func() { require.NoError(t, client.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	check := checker.New(event.DefaultStages())
	var watching, waiting sync.WaitGroup
	for _, domain := range []string{"scan", "chat"} {
		for i := range 3 {
			w := check.Watch(fmt.Sprint("watcher ", i+1), domain, "job")
			waiting.Add(1)
			connected := sync.OnceFunc(waiting.Done)
			watching.Go(func() {
				reason, _ := jobwatch.Follow(ctx, jobwatch.Options{ // the checker reports it
					URL: s.url + "/jobs/" + domain + "/job/events", Message: w.Message, Connected: func() { w.Connected(); connected() },
				})
				w.Ended(reason)
			})
		}
	}
	waiting.Wait()
	add := func(domain string, values ...any) {
		stream := fmt.Sprintf("%s:events:%d", domain, event.Shard("job", jobsShards))
		require.NoError(t, client.XAdd(ctx, &goredis.XAddArgs{Stream: stream, Values: values}).Err())
	}
	publish := func(domain string, seq int64, stage, status string) {
		check.Published(event.Event{Domain: domain, JobID: "job", Stage: stage, Seq: seq, Status: status})
		add(domain, "job_id", "job", "stage", stage, "seq", seq, "status", status)
	}
	for _, seq := range []int64{1, 2, 2, 4, 3} {
		publish("scan", seq, "scan", "")
		publish("chat", seq, "answer", "of chat")
	}
	publish("scan", 5, "scan", "first")
	publish("scan", 5, "scan", "second")
	publish("scan", 7, "scan", "") // 6 is missing
	publish("scan", 8, "done", "")
	publish("scan", 9, "scan", "after the end")
	publish("chat", 5, "error", "")

	classes := map[string]int{"missing_job_id": 1, "bad_event": 3, "too_large": 1, "bad_seq": 2}
	add("scan", "stage", "scan", "seq", 1)
	add("scan", "job_id", strings.Repeat("x", 10<<10), "stage", "scan", "seq", 1)
	add("scan", "job_id", "a}b{", "stage", "scan", "seq", 1)
	add("scan", "job_id", "job", "stage", "scan", "seq", 10, "data", "{")
	add("scan", "job_id", "job", "stage", "scan", "seq", 10, "data", `"`+strings.Repeat("x", 1<<20)+`"`)
	add("scan", "job_id", "job", "stage", "scan")
	add("scan", "job_id", "job", "stage", "scan", "seq", "ten")

	watching.Wait()
	report := check.Report()
	require.True(t, report.OK(), "%+v\n%s", report, s.log)
	require.Equal(t, 3, report.Gaps, "of the number that is missing, for each watcher")

	dead := func() error {
		entries, err := client.XRange(ctx, "scan:events:dead", "-", "+").Result()
		if err != nil {
			return err
		}
		found := map[string]int{}
		for _, e := range entries {
			var headers map[string]string
			text, _ := e.Values["headers"].(string)
			if err := json.Unmarshal([]byte(text), &headers); err != nil {
				return err
			}
			found[headers["millrace-dead-class"]]++
		}
		if fmt.Sprint(found) != fmt.Sprint(classes) {
			return fmt.Errorf("%v", found)
		}
		return nil
	}
	require.NoError(t, until(ctx, time.Minute, "the dead letters", dead))
	before, err := client.XRange(ctx, "scan:events:dead", "-", "+").Result()
	require.NoError(t, err)
	// Of those that were too large the stream has the beginning only, and no store has the rest.
	out, code := s.command("", "deadletter", "replay", "--all", "--why", "test")
	require.Equal(t, app.ExitBad, code, out)
	require.Contains(t, out, "7 dead letters: 5 replayed, 2 refused.")
	require.Equal(t, 2, strings.Count(out, "of its payload were kept: publish the complete message again"), out)
	// The letters of a batch are in the stream in any order, so those that stay can be anywhere.
	require.NoError(t, until(ctx, time.Minute, "they fail again", func() error {
		stayed := 0
		for _, letter := range before {
			same, err := client.XRange(ctx, "scan:events:dead", letter.ID, letter.ID).Result()
			if err != nil {
				return err
			}
			stayed += len(same)
		}
		if stayed != 2 {
			return fmt.Errorf("%d of the letters are still there", stayed)
		}
		return dead()
	}))
}

// A key of one job has content of another program. Its events become dead letters, or the content
// counts as none, and the good entries behind them are trimmed.
func TestOneJobThatCanNotBeStoredStopsNoShard(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	node := startNode(t, "redis-server")
	require.NoError(t, node.Set(t.Context(), joblog.StateKey("scan", "foreign"), `{"job_id":"foreign","stage":"vision"}`, 0).Err())
	require.NoError(t, node.Set(t.Context(), joblog.LogKey("scan", "broken"), "junk", 0).Err())
	s := startJobs(t, node.addr, "one")
	add := func(id string, seq int) {
		require.NoError(t, node.XAdd(t.Context(), &goredis.XAddArgs{Stream: "scan:events:2", Values: []any{"job_id", id, "stage", "scan", "seq", seq}}).Err())
	}
	add("foreign", 1)
	add("broken", 1)
	for seq := 1; seq <= 100; seq++ {
		add("good", seq)
	}
	require.NoError(t, until(t.Context(), 2*time.Minute, "the shard is empty", func() error {
		if n := node.XLen(t.Context(), "scan:events:2").Val(); n > 0 {
			return fmt.Errorf("%d entries", n)
		}
		return nil
	}), "%s", s.log)
	dead, err := node.XRange(t.Context(), "scan:events:dead", "-", "+").Result()
	require.NoError(t, err)
	require.Len(t, dead, 1)
	require.Contains(t, dead[0].Values["headers"], `"millrace-dead-class":"delivery_limit"`)
	require.Contains(t, dead[0].Values["headers"], "WRONGTYPE")
	for id, last := range map[string]string{"foreign": "1", "good": "100"} {
		require.True(t, node.HExists(t.Context(), joblog.LogKey("scan", id), last).Val(), id)
	}
}
