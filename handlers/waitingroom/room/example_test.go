package room_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
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

	rooms := room.New(server, room.Options{
		PromoteInterval: time.Millisecond, PromoteBatch: 200, TokenTTL: 5 * time.Minute, ReadyTTL: 2 * time.Minute,
		Grace: 2 * time.Minute, SeenInterval: 30 * time.Second, ClearAfter: 24 * time.Hour, MaxEvents: 10,
	})
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	check(rooms.Create(ctx, "42"))
	check(rooms.SetCapacity(ctx, "42", 1))
	for _, user := range []string{"ann", "bob"} {
		p, err := rooms.Enter(ctx, "42", user, "broker-1", 0)
		check(err)
		fmt.Println(user, p.State, p.How, p.Ahead)
	}
	tick := room.Tick{}
	for !tick.Ran { // after promote_interval
		var err error
		tick, err = rooms.Tick(ctx, "42")
		check(err)
	}
	fmt.Println("promoted", tick.Promoted, "waiting", tick.Table.Waiting)
	leases, err := rooms.Claim(ctx, "42", "broker-1", []room.Sign{{User: "ann"}})
	check(err)
	fmt.Println("ann", leases[0].State)
	_, err = rooms.Verify(ctx, "42", "ann", leases[0].JTI, "shop-session")
	check(err)
	sold, err := rooms.Finish(ctx, "42", "ann", leases[0].JTI, "shop-session", true)
	check(err)
	bob, err := rooms.Status(ctx, "42", "bob")
	check(err)
	fmt.Println("ann", sold.State, "bob", bob.State, bob.Ahead)
	// Output:
	// ann WAITING new 0
	// bob WAITING new 1
	// promoted 1 waiting 1
	// ann ADMITTED
	// ann SOLD bob WAITING 0
}
