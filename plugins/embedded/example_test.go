package embedded_test

import (
	"context"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// ExampleEnvironment gives a binary the value embedded of its setting environment.
func ExampleEnvironment() {
	app.Main(context.Background(), app.Options{
		Name: "mill", Args: []string{"validate"}, Environ: []string{"MILL__ENVIRONMENT=embedded"},
		Environments: map[string]app.Environment{"embedded": embedded.Environment(map[string]string{
			"plugins.orders.dsn":           "sqlite:{dir}/orders.db", // in the data folder
			"plugins.deadletter.store.dsn": "sqlite:{dir}/deadletters.db",
		})},
	})
	// Output: The settings are valid (environment).
}

// Example starts the servers in a folder, talks to its Redis, and stops it.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "millrace-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	servers, err := embedded.Start(ctx, embedded.Config{Dir: dir, Topics: []string{"orders"}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer servers.Stop(ctx)

	// A configuration loader applies these over the profile; then every plugin finds its way here.
	_, kafka := servers.Overrides()["plugins.kafka.brokers"]
	_, redisAddrs := servers.Overrides()["plugins.redis.addrs"]
	fmt.Println("overrides brokers:", kafka, "and addrs:", redisAddrs)

	rdb := redis.NewClient(&redis.Options{Addr: servers.RedisAddr()})
	defer rdb.Close()
	fmt.Println(rdb.Ping(ctx).Val())
	// Output:
	// overrides brokers: true and addrs: true
	// PONG
}
