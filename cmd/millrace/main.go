// Command millrace is an event pipeline: Kafka in, Redis Streams to spread the work, and each
// payout made once at the end.
//
//	millrace demo                  pays a campaign with everything inside this process
//	millrace run --profile local   runs against the servers of `make services`
//	millrace topology              shows what flows where
//	millrace help                  lists everything else
//
// To build a binary with plugins of your own, copy this file: app.Main takes any list of plugins.
package main

import (
	"context"
	"os"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/wire"
)

func main() {
	os.Exit(app.Main(context.Background(), app.Options{
		Name:           "millrace", // MILLRACE__LOG__LEVEL and the like are settings
		Short:          "Event pipelines: Kafka in, handlers, Redis Streams to spread the work, and side effects that happen once",
		Documentation:  "https://github.com/millrace-io/millrace/tree/main/docs",
		Plugins:        wire.New().Plugins(),
		Environments:   wire.Environments(),
		Profiles:       wire.Profiles(),
		DefaultProfile: "embedded",
	}))
}
