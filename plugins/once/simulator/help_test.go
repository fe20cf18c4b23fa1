package simulator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("MILLRACE_SIMULATOR_TEST_VICTIM"); path != "" {
		os.Exit(victim(path))
	}
	goleak.VerifyTestMain(m)
}

// invoices is a far side with a lookup, sums and a filter.
func invoices() API {
	check := func(body []byte) (Order, error) {
		var o struct{ Customer, Number, Cents int }
		err := json.Unmarshal(body, &o)
		if err == nil && o.Cents == 0 {
			err = errors.New("no cents")
		}
		return Order{Subject: fmt.Sprintf("invoice:%d:%d", o.Customer, o.Number), Sum: int64(o.Cents)}, err
	}
	valid := regexp.MustCompile(`^invoice:[0-9]+:[0-9]+$`)
	return API{
		Operation: func(r *http.Request) (string, Check) {
			if r.Method != http.MethodPost || r.URL.Path != "/v1/invoices" {
				return "", nil
			}
			return r.Header.Get("Idempotency-Key"), check
		},
		Lookup: func(r *http.Request) (string, bool) {
			key, ok := strings.CutPrefix(r.URL.Path, "/v1/invoices/")
			return key, ok && r.Method == http.MethodGet
		},
		ValidKey: valid.MatchString,
		KeyForm:  "the key must be invoice:<customer>:<number>",
		Sums:     true,
		Filter: func(v url.Values) (func(string) bool, error) {
			customer := v.Get("customer")
			if customer == "nobody" {
				return nil, errors.New("there is no such customer")
			}
			return func(subject string) bool {
				return customer == "" || strings.HasPrefix(subject, "invoice:"+customer+":")
			}, nil
		},
	}
}

// ofCustomer selects the invoices of a customer.
func ofCustomer(customer string) url.Values { return url.Values{"customer": {customer}} }

// page returns a page of a running server.
func page(t testing.TB, s *Server, q Query) Page {
	t.Helper()
	p, err := s.Page(q)
	require.NoError(t, err)
	return p
}

// start returns a running server that is stopped at the end of the test.
func start(t testing.TB, cfg Config) *Server {
	t.Helper()
	s, err := New(invoices(), cfg)
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.Stop(ctx))
	})
	return s
}

// answer is what came of a request.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

// caller sends requests, each on a connection of its own.
type caller struct {
	base    string
	timeout time.Duration
}

func (c caller) do(method, path, key, body string) answer {
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	return do(ctx, method, c.base+path, key, body)
}

func do(ctx context.Context, method, url, key, body string) answer {
	transport := &http.Transport{DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(b), err: err}
}

// hangUp sends a request and disconnects when reached is true.
func (c caller) hangUp(t *testing.T, customer, number, cents int, reached func() bool) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	got := make(chan answer, 1)
	go func() {
		got <- do(ctx, http.MethodPost, c.base+"/v1/invoices", fmt.Sprintf("invoice:%d:%d", customer, number), invoiceBody(customer, number, cents))
	}()
	require.Eventually(t, reached, c.timeout, time.Millisecond)
	cancel()
	return <-got
}

func (c caller) ask(customer, number, cents int) answer {
	return c.do(http.MethodPost, "/v1/invoices", fmt.Sprintf("invoice:%d:%d", customer, number), invoiceBody(customer, number, cents))
}

func invoiceBody(customer, number, cents int) string {
	return fmt.Sprintf(`{"customer":%d,"number":%d,"cents":%d}`, customer, number, cents)
}

func call(s *Server) caller { return caller{s.URL(), 20 * time.Second} }
