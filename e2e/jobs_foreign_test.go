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
	jobwatch "github.com/millrace-io/millrace/handlers/eventrouter/watch"
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
	before, err := client.XRangeN(ctx, "scan:events:dead", "-", "+", 1).Result()
	require.NoError(t, err)
	out, code := s.command("", "deadletter", "replay", "--all", "--why", "test")
	require.Zero(t, code, out)
	require.NoError(t, until(ctx, time.Minute, "they fail again", func() error {
		if again, err := client.XRangeN(ctx, "scan:events:dead", "-", "+", 1).Result(); err != nil || len(again) == 1 && again[0].ID == before[0].ID {
			return fmt.Errorf("not replayed: %w", err)
		}
		return dead()
	}))
}
