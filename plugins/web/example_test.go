package web_test

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// orders is a plugin with a page for signed-in users.
type orders struct{ web *web.Plugin }

func (orders) Name() string { return "orders" }

// Needs names the server: it can't be switched off then.
func (orders) Needs() []string { return []string{"web"} }

func (o orders) Register(*pipeline.Registry) error {
	o.web.Handle("GET /orders/{id}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, _ := web.UserOf(r.Context())
		if r.PathValue("id") != "7" {
			web.Refuse(w, r, web.Refusal{Status: http.StatusNotFound, Word: "not_found", Message: "no such order"})
			return
		}
		fmt.Fprintln(w, "order 7 of", user.ID)
	}), web.Users(), web.AllowOrigins())
	return nil
}

// Example serves a handler to a user that a proxy has signed in.
func Example() {
	ctx := context.Background()
	tokens, streams := token.New(), sse.New()
	public := web.New(tokens, streams)
	if c, ok := public.Settings().(*web.Config); ok { // in a service: plugins.web
		c.Listen, c.TrustedProxies, c.Auth.Header = "127.0.0.1:0", []string{"127.0.0.1"}, "X-User"
	}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, tokens, streams, public, orders{public})
	if err != nil {
		fmt.Println(err)
		return
	}
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	if err := rt.StartServices(ctx); err != nil {
		fmt.Println(err)
		return
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/orders/7", "/orders/8"} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+public.Addr()+path, http.NoBody)
		if err != nil {
			fmt.Println(err)
			return
		}
		request.Header.Set("X-User", "ann")
		answer, err := client.Do(request)
		if err != nil {
			fmt.Println(err)
			return
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		fmt.Print(answer.StatusCode, " ", string(body))
		if err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(rt.Stop(ctx))
	// Output:
	// 200 order 7 of ann
	// 404 {"error":"not_found","message":"no such order"}
	// <nil>
}
