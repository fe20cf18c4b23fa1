package app_test

import (
	"context"
	"fmt"
	"os"
	"testing/fstest"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// timer is a plugin with settings.
type timer struct{ config timerConfig }

type timerConfig struct {
	Every time.Duration `yaml:"every"`
}

func (c *timerConfig) Validate() error {
	if c.Every <= 0 {
		return &setting.FieldError{Path: "every", Problem: fmt.Sprintf("must be > 0, got %s", c.Every)}
	}
	return nil
}

func (*timer) Name() string                      { return "timer" }
func (t *timer) Settings() any                   { return &t.config }
func (*timer) Register(*pipeline.Registry) error { return nil }

// A binary with a profile of its own, usually an embed.FS, and environment variables of its own.
func ExampleOptions() {
	for _, every := range []string{"10m", "0s"} {
		code := app.Main(context.Background(), app.Options{
			Name:      "mine",
			Plugins:   []pipeline.Plugin{&timer{timerConfig{Every: time.Hour}}},
			Profiles:  fstest.MapFS{"dev.yaml": {Data: []byte("log: {level: debug}\n")}},
			EnvPrefix: "MINE",
			Environ:   []string{"MINE__PLUGINS__TIMER__EVERY=" + every},
			Args:      []string{"validate", "--profile", "dev"},
			Stdout:    os.Stdout,
			Stderr:    os.Stdout,
		})
		fmt.Println("exit code", code)
	}
	// Output:
	// The settings are valid (profile dev, environment).
	// exit code 0
	// mine: the settings have mistakes:
	//   environment variable MINE__PLUGINS__TIMER__EVERY: plugins.timer.every: must be > 0, got 0s
	// exit code 2
}
