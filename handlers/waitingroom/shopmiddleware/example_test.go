package shopmiddleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
)

// Example puts a gate before the checkout of a shop.
func Example() {
	rooms := httptest.NewServer(http.NotFoundHandler()) // in production: the address of the brokers
	defer rooms.Close()
	session := func(r *http.Request) string {
		c, err := r.Cookie("session")
		if err != nil {
			return ""
		}
		return c.Value
	}
	g, err := shopmiddleware.New(shopmiddleware.Options{
		URL: rooms.URL, ShopToken: "secret of the shop",
		Event:   func(r *http.Request) string { return r.PathValue("event") },
		Session: session,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("POST /checkout/{event}", g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entry, _ := shopmiddleware.EntryOf(r.Context())
		fmt.Fprintln(w, "a ticket for", entry.UserID)
		// After the payment: g.Finish(ctx, entry.Event, token, session(r), true)
	})))
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/checkout/42", http.NoBody))
	fmt.Print(answer.Code, " ", answer.Body)
	// Output: 401 {"error":"no_entry"}
}
