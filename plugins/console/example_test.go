package console_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/plugins/console"
)

// carts is a plugin of another module. Its page takes the lines from Console on, and no HTML.
type carts struct{ open atomic.Int64 }

func (*carts) Name() string { return "carts" }

func (c *carts) Register(r *pipeline.Registry) error {
	r.Offer(c)
	return nil
}

func (c *carts) Console() []pages.Page {
	return []pages.Page{{Path: "carts", Title: "Carts", Order: 35, Panels: []pages.Panel{
		{Name: "carts", Title: "Open carts", Load: c.load},
	}}}
}

func (c *carts) load(context.Context, pages.Query) (pages.Block, error) {
	return pages.Stats{
		{Name: "Open", Cell: pages.Count(c.open.Load())},
		{Name: "Abandoned today", Cell: pages.Number(nil)}, // not known, and never shown as 0
	}, nil
}

// Example is a process with a console to which a plugin of another module contributes a page.
func Example() {
	c := console.New()
	c.Settings().(*console.Config).Listen = "127.0.0.1:0"
	shop := &carts{}
	shop.open.Store(1204)

	registry, err := pipeline.NewRegistry(pipeline.Env{Instance: "shop-1"}, shop, c)
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	runtime := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{})
	if err := runtime.StartServices(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for _, path := range []string{"/carts", "/api/v1/carts"} {
		answer, err := http.Get("http://" + c.Addr() + path)
		if err != nil {
			fmt.Println(err)
			return
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		for line := range strings.Lines(string(text)) {
			if strings.Contains(strings.ToLower(line), "abandoned") || strings.Contains(line, `"open"`) {
				fmt.Println(strings.TrimSpace(line))
			}
		}
	}
	fmt.Println(runtime.Stop(ctx))
	// Output:
	// <dl class="stats"><div><dt>Open</dt><dd>1,204</dd></div><div><dt>Abandoned today</dt><dd>unknown</dd></div></dl>
	// "abandoned_today": null,
	// "open": 1204
	// <nil>
}
