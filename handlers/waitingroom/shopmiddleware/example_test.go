package shopmiddleware_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

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

// A payment that takes longer needs a later end, which only a verified entry gets.
func ExampleGate_Extend() {
	rooms := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `{"error":"not_verified","message":"verify the token first"}`)
	}))
	defer rooms.Close()
	g, err := shopmiddleware.New(shopmiddleware.Options{
		URL: rooms.URL, ShopToken: "secret of the shop",
		Event: func(r *http.Request) string { return r.PathValue("event") },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = g.Extend(context.Background(), "42", "token of the user", "session", time.Now().Add(10*time.Minute))
	if errors.Is(err, shopmiddleware.ErrNotVerified) {
		fmt.Println("verify, then extend")
	}
	// Output: verify, then extend
}
