package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// billing is a far side that creates invoices, with a book that the checks read. What it does with a second request
// depends on the first part of the path, which is the kind. It knows an invoice by what the request says, and not by
// the idempotency key, so two invoices with one key are noticed.
type billing struct {
	t    *testing.T
	addr string

	mu       sync.Mutex
	server   *http.Server // nil while it is down
	faults   simulator.Faults
	random   *rand.Rand
	receipts int
	book     map[invoice]*bookEntry
	byKey    map[[2]string]*bookEntry // kind and idempotency key
}

// invoice names one of a kind.
type invoice struct{ kind, customer, number string }

// bookEntry is what the book says about an invoice.
type bookEntry struct {
	receipts []string // one for each time that it was created
	requests []string // the bodies, each once
	keys     []string // the idempotency keys, each once
	calls    int
	calling  int
	overlaps int // calls that began during another one
}

func newBilling(t *testing.T) *billing {
	t.Helper()
	b := &billing{t: t, addr: "127.0.0.1:0", faults: usualMoney, book: map[invoice]*bookEntry{}, byKey: map[[2]string]*bookEntry{}}
	require.NoError(t, b.SetFaults(usualMoney))
	t.Cleanup(func() { _ = b.SetFaults(simulator.Faults{Down: true}) })
	return b
}

// SetFaults replaces the faults from the next request on. While it is down, connections are refused.
func (b *billing) SetFaults(f simulator.Faults) error {
	if err := f.Validate(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults, b.random = f, rand.New(rand.NewPCG(f.Seed, 0))
	switch {
	case f.Down && b.server != nil:
		err := b.server.Close()
		b.server = nil
		return err
	case !f.Down && b.server == nil:
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", b.addr)
		if err != nil {
			return err
		}
		mux := http.NewServeMux()
		mux.HandleFunc("POST /{kind}/invoices", b.create)
		mux.HandleFunc("GET /{kind}/invoices/{key}", b.find)
		b.addr, b.server = l.Addr().String(), &http.Server{Handler: mux}
		go func(s *http.Server) { _ = s.Serve(l) }(b.server)
	}
	return nil
}

// fate is what becomes of one request.
type fate struct {
	status  int  // of a refusal; 0: it is worked on
	silent  bool // nothing is done, and nothing is answered
	lost    bool // the answer is lost
	cut     bool // at once, and not by silence
	latency time.Duration
	wait    time.Duration // of a refusal that says when to come again
}

func (b *billing) fate() fate {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := b.faults
	x := fate{latency: f.Latency + time.Duration(b.random.Int64N(int64(f.Jitter)+1)), silent: f.Silence}
	u := b.random.Float64()
	switch {
	case f.Unauthorized:
		x.status = http.StatusUnauthorized
	case u < f.ThrottleRate:
		x.status, x.wait = http.StatusTooManyRequests, f.RetryAfter
	case u < f.ThrottleRate+f.FailRate:
		x.status = http.StatusInternalServerError
	case u < f.ThrottleRate+f.FailRate+f.TimeoutRate:
		x.lost = true
	case u < f.ThrottleRate+f.FailRate+f.TimeoutRate+f.ResetRate:
		x.lost, x.cut = true, true
	}
	return x
}

func (b *billing) create(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var asked struct{ Customer, Number string }
	if err != nil || json.Unmarshal(body, &asked) != nil {
		refuse400(w)
		return
	}
	kind, key := r.PathValue("kind"), r.Header.Get("Idempotency-Key")
	e := b.begin(invoice{kind, asked.Customer, asked.Number}, key, string(body))
	x := b.fate()
	// A request that has arrived is worked on, also if its worker was killed.
	loop.Sleep(context.WithoutCancel(r.Context()), x.latency)
	var receipt string
	if x.status == 0 && !x.silent {
		receipt = b.execute(kind, key, e)
	}
	if x.silent {
		<-r.Context().Done()
	}
	b.mu.Lock()
	e.calling--
	b.mu.Unlock()
	b.answer(w, r, x, receipt)
}

// begin notes a call.
func (b *billing) begin(of invoice, key, body string) *bookEntry {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.book[of]
	if e == nil {
		e = &bookEntry{}
		b.book[of] = e
	}
	if e.calls++; e.calling > 0 {
		e.overlaps++
	}
	e.calling++
	if !slices.Contains(e.requests, body) {
		e.requests = append(e.requests, body)
	}
	if key != "" && !slices.Contains(e.keys, key) {
		e.keys = append(e.keys, key)
	}
	return e
}

// execute creates the invoice, unless the kind is one whose keys it knows, and this one is known.
func (b *billing) execute(kind, key string, e *bookEntry) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.byKey[[2]string{kind, key}]
	if known != nil && kind == kindByKey {
		return known.receipts[0]
	}
	b.receipts++
	receipt := "in-" + strconv.Itoa(b.receipts)
	e.receipts = append(e.receipts, receipt)
	if key != "" {
		b.byKey[[2]string{kind, key}] = e
	}
	return receipt
}

func (b *billing) find(w http.ResponseWriter, r *http.Request) {
	x := b.fate()
	loop.Sleep(context.WithoutCancel(r.Context()), x.latency)
	if x.silent {
		<-r.Context().Done()
	}
	b.mu.Lock()
	e, receipt := b.byKey[[2]string{r.PathValue("kind"), r.PathValue("key")}], ""
	if e != nil {
		receipt = e.receipts[0]
	}
	b.mu.Unlock()
	if e == nil && x.status == 0 {
		x.status = http.StatusNotFound
	}
	b.answer(w, r, x, receipt)
}

func (b *billing) answer(w http.ResponseWriter, r *http.Request, x fate, receipt string) {
	switch {
	case x.silent, x.cut:
		panic(http.ErrAbortHandler)
	case x.lost:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	if x.wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(x.wait.Seconds())))
	}
	if x.status != 0 {
		w.WriteHeader(x.status)
		fmt.Fprintf(w, `{"code":%q}`, strings.ReplaceAll(strings.ToLower(http.StatusText(x.status)), " ", "_"))
		return
	}
	fmt.Fprintf(w, `{"id":%q}`, receipt)
}

func refuse400(w http.ResponseWriter) {
	w.WriteHeader(http.StatusBadRequest)
	fmt.Fprint(w, `{"code":"bad_request"}`)
}

// of returns what the book says about an invoice.
func (b *billing) of(i invoice) bookEntry {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.book[i]; e != nil {
		c := *e
		c.receipts, c.requests, c.keys = slices.Clone(e.receipts), slices.Clone(e.requests), slices.Clone(e.keys)
		return c
	}
	return bookEntry{}
}

// customers returns the invoices of these customers in the book.
func (b *billing) customers(names []string) (all []invoice) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.book {
		if slices.Contains(names, i.customer) {
			all = append(all, i)
		}
	}
	return all
}
