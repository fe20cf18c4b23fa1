package joblog_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/plugins/redis"
)

func Example() {
	ctx, mini := context.Background(), miniredis.NewMiniRedis()
	if err := mini.Start(); err != nil {
		panic(err)
	}
	defer mini.Close()
	config := redis.DefaultClientConfig()
	config.Addrs = []string{mini.Addr()}
	server := redis.New().Server(&config)
	if err := server.Start(ctx); err != nil {
		panic(err)
	}
	defer func() { _ = server.Stop(ctx) }()

	log := joblog.New(server, joblog.DefaultConfig(), event.DefaultStages())
	events := []event.Event{
		{Domain: "scan", JobID: "job-1", Stage: "ocr", Seq: 1}, {Domain: "scan", JobID: "job-1", Stage: "done", Seq: 2},
		{Domain: "scan", JobID: "job-1", Stage: "ocr", Seq: 3},
	}
	results := log.Append(ctx, "scan", [][]event.Event{events})
	for _, answer := range results[0].Answers {
		fmt.Println(answer.Outcome == joblog.Added, len(answer.Text))
	}
	snapshots := log.Read(ctx, []joblog.Query{{Domain: "scan", JobID: "job-1", After: 1, Limit: 10}})
	fmt.Println(snapshots[0].State.Stage, snapshots[0].End, len(snapshots[0].Events))
	// Output:
	// true 56
	// true 57
	// false 0
	// done 2 1
}
