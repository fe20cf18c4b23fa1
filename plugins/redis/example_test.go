package redis_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"

	"github.com/millrace-io/millrace/plugins/redis"
)

func ExampleServer() {
	mini := miniredis.NewMiniRedis()
	if err := mini.Start(); err != nil {
		panic(err)
	}
	defer mini.Close()
	own := redis.DefaultClientConfig()
	own.Addrs = []string{mini.Addr()}
	server, ctx := redis.New().Server(&own), context.Background()
	if err := server.Start(ctx); err != nil {
		panic(err)
	}
	defer func() { _ = server.Stop(ctx) }()

	grind := redis.NewScript("-- grind.lua: adds flour.\nreturn redis.call('INCRBY', KEYS[1], ARGV[1])")
	rye := grind.Call([]string{"flour:rye"}, 3)
	oats := redis.Command("GET", "flour:oats")
	if err := server.Do(ctx, rye, oats); err != nil {
		panic(err)
	}
	sum, err := rye.Int()
	fmt.Println(sum, err, oats.Missing())
	// Output: 3 <nil> true
}
