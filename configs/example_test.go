package configs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace-io/millrace/configs"
)

type greeterConfig struct {
	Greeting string        `yaml:"greeting"`
	Every    time.Duration `yaml:"every"`
	Names    []string      `yaml:"names"`
}

func ExampleLoad() {
	dir, err := os.MkdirTemp("", "configs")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "greeter.yaml")
	if err := os.WriteFile(file, []byte("plugins:\n  greeter:\n    greeting: hi\n"), 0o600); err != nil {
		panic(err)
	}

	settings, err := configs.Load(configs.Options{
		File:      file,
		EnvPrefix: "HALL",
		Environ:   []string{"HALL__PLUGINS__GREETER__NAMES=ann,bob"},
	})
	if err != nil {
		panic(err)
	}
	c := greeterConfig{Greeting: "hello", Every: time.Second} // the defaults
	if err := settings.Decode("plugins.greeter", &c); err != nil {
		panic(err)
	}
	fmt.Println(c.Greeting, c.Names, "every", c.Every)
	// Output: hi [ann bob] every 1s
}

func ExampleDocument_Decode() {
	settings, err := configs.Load(configs.Options{EnvPrefix: "HALL", Environ: []string{
		"HALL__PLUGINS__GREETER__EVRY=5s",
		"HALL__PLUGINS__GREETER__EVERY=soon",
	}})
	if err != nil {
		panic(err)
	}
	for _, mistake := range configs.Flatten(settings.Decode("plugins.greeter", &greeterConfig{})) {
		fmt.Println(mistake.Path, "-", mistake.Problem)
	}
	// Output:
	// plugins.greeter.every - expected a duration such as 5s or 100ms, got "soon"
	// plugins.greeter.evry - unknown setting; did you mean "every"?
}

func ExampleSchema() {
	text, err := configs.Schema("hall", nil, map[string]any{"plugins.greeter": &greeterConfig{Greeting: "hello", Every: time.Minute}})
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "default") {
			fmt.Println(strings.TrimSpace(line))
		}
	}
	// Output:
	// "default": true,
	// "default": "1m",
	// "default": "hello",
}
