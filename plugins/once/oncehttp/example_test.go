package oncehttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

func ExamplePost() {
	ctx := context.Background()
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // in place of the real API
		if r.Method == http.MethodGet {
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"error":{"code":"no_such_invoice"}}`)
			return
		}
		io.WriteString(w, `{"id":"in_17","paid":false}`)
	}))
	defer far.Close()

	var config oncehttp.Config // a part of the plugin's settings
	api := oncehttp.New(&config, oncehttp.Mapping{
		Name:     "billing",
		Receipt:  []string{"id"},
		Code:     []string{"error", "code"},
		NotFound: []string{"no_such_invoice"},
	})
	config.URL = far.URL // from the settings
	if err := api.Open(nil); err != nil {
		panic(err)
	}
	defer api.Close()

	attempt := once.Attempt[string]{Kind: "invoice", Repeat: once.ByKey, Idempotency: "invoice:acme:17", Request: []byte(`{"cents":1200}`)}
	done := oncehttp.Post(ctx, api, "/v1/invoices", attempt)
	found := oncehttp.Find(ctx, api, "/v1/invoices/by-key/{key}", once.Lookup{Idempotency: "invoice:acme:18"})
	fmt.Println(done.Class, done.Receipt)
	fmt.Println(found.Class, found.Status)
	// Output:
	// done in_17
	// not_done 404
}
