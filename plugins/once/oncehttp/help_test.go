package oncehttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// billing is the API of the tests: POST /v1/invoices, and GET /v1/invoices/by-key/{key}.
func billing() oncehttp.Mapping {
	return oncehttp.Mapping{
		Name: "billing", Receipt: []string{"id"}, Key: []string{"key"}, NotFound: []string{"invoice_not_found"},
		Rejected: map[int][]string{http.StatusForbidden: {"customer_blocked"}, http.StatusConflict: {"number_taken"}},
		Done:     []string{"created_before"},
	}
}

// newClient returns a client of the API at url. Its limits are long, because a machine may be busy.
func newClient(t testing.TB, url string, change func(*oncehttp.Config)) *oncehttp.Client {
	t.Helper()
	return newClientOf(t, url, billing(), change)
}

func newClientOf(t testing.TB, url string, m oncehttp.Mapping, change func(*oncehttp.Config)) *oncehttp.Client {
	t.Helper()
	cfg := oncehttp.DefaultConfig()
	cfg.URL = url
	cfg.CallTimeout, cfg.ConnectTimeout = time.Minute, time.Minute
	if change != nil {
		change(&cfg)
	}
	c := oncehttp.New(&cfg, m)
	require.NoError(t, c.Open(nil))
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

const body = `{"customer":"acme","number":"17","cents":1200}`

// attempt is one of an invoice with this idempotency key.
func attempt(key string) once.Attempt[string] {
	return once.Attempt[string]{Kind: "invoice", Repeat: once.ByKey, Idempotency: key, Request: []byte(body), Number: 1}
}

func post(ctx context.Context, c *oncehttp.Client, key string) once.Answer {
	return oncehttp.Post(ctx, c, "/v1/invoices", attempt(key))
}

func find(ctx context.Context, c *oncehttp.Client, key string) once.Answer {
	return oncehttp.Find(ctx, c, "/v1/invoices/by-key/{key}", once.Lookup{Idempotency: key})
}

var nextKey atomic.Int64

// another is a key that no other call is about.
func another() string { return fmt.Sprint("invoice:other:", nextKey.Add(1)) }

// farSide creates invoices, or answers everything as it is told.
type farSide struct {
	URL      string
	requests atomic.Int32
	answer   atomic.Pointer[string] // nil: creates; else the status and the body
}

func newFarSide(t testing.TB) *farSide {
	f := &farSide{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		f.requests.Add(1)
		if text := f.answer.Load(); text != nil {
			var status int
			var body string
			if _, err := fmt.Sscan(*text, &status, &body); err != nil {
				t.Error(err)
			}
			w.WriteHeader(status)
			io.WriteString(w, body)
			return
		}
		io.WriteString(w, `{"id":"t-1"}`)
	}))
	t.Cleanup(s.Close)
	f.URL = s.URL
	return f
}

func (f *farSide) answers(text string) *farSide {
	f.answer.Store(&text)
	return f
}

func (f *farSide) works() { f.answer.Store(nil) }

const (
	failed       = `500 {"code":"internal"}`
	unauthorized = `401 {"code":"unauthorized"}`
)
