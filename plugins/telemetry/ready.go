package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
)

// Readiness is the body of /readyz and /readyz/serving.
type Readiness struct {
	Ready  bool                   `json:"ready"`
	Phase  string                 `json:"phase"` // starting, running or draining
	Checks map[string]CheckResult `json:"checks"`
}

// CheckResult is one check's answer.
type CheckResult struct {
	OK      bool           `json:"ok"`
	Error   string         `json:"error,omitempty"`
	Seconds float64        `json:"seconds"`           // how long the check took
	Details map[string]any `json:"details,omitempty"` // of Detail; only with ?verbose
}

// Detail adds a value to the result of a health check, such as the age of the oldest unpaid target.
// /readyz?verbose shows it. ctx is that of the check; with any other Detail does nothing. The value
// must be one that JSON can hold. Detail is safe for concurrent use.
func Detail(ctx context.Context, key string, value any) {
	d, ok := ctx.Value(detailsKey{}).(*details)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.values[key] = value
}

type detailsKey struct{}

type details struct {
	mu     sync.Mutex
	values map[string]any
}

func (d *details) copy() map[string]any {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.values) == 0 {
		return nil
	}
	out := make(map[string]any, len(d.values))
	for k, v := range d.values {
		if _, err := json.Marshal(v); err != nil {
			v = fmt.Sprint(v)
		}
		out[k] = v
	}
	return out
}

// ready runs the checks that count, at once. It answers 503 if one fails, and unless the process is
// running. No check runs during the drain, because services stop. Details can be long, one per
// promotion, so they are written only with the query parameter verbose.
func (s *server) ready(counts func(*probe) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		now := s.now()
		answer := Readiness{Ready: now == running, Phase: string(now), Checks: map[string]CheckResult{}}
		if now != draining {
			probes := slices.DeleteFunc(slices.Clone(s.probes), func(p *probe) bool { return !counts(p) })
			results := s.results(r.Context(), probes)
			for i, p := range probes {
				if !r.URL.Query().Has("verbose") {
					results[i].Details = nil
				}
				answer.Checks[p.Name] = results[i]
				answer.Ready = answer.Ready && results[i].OK
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		if !answer.Ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(answer) // a client that has gone needs no answer
	}
}

// results runs checks at once and returns their answers in the order of the probes.
func (s *server) results(ctx context.Context, probes []*probe) []CheckResult {
	results := make([]CheckResult, len(probes))
	var wg sync.WaitGroup
	for i, p := range probes {
		wg.Go(func() { results[i] = p.result(ctx, s.plugin.config.CheckTimeout) })
	}
	wg.Wait()
	return results
}

// health exports the checks of /readyz as a metric. A scrape runs them.
type health struct{ *server }

func (health) desc() *prometheus.Desc {
	return prometheus.NewDesc("millrace_health_check_ok", "1 while a check of /readyz passes, else 0.", []string{"check"}, nil)
}

func (h health) Describe(ch chan<- *prometheus.Desc) { ch <- h.desc() }

func (h health) Collect(ch chan<- prometheus.Metric) {
	results := h.results(context.Background(), h.probes) // each is bounded by the check timeout
	for i, p := range h.probes {
		ok := 0.0
		if results[i].OK {
			ok = 1
		}
		ch <- prometheus.MustNewConstMetric(h.desc(), prometheus.GaugeValue, ok, p.Name)
	}
}

// probe runs one check, one run at a time: a check that hangs costs one goroutine in total.
type probe struct {
	pipeline.HealthCheck

	mu  sync.Mutex
	now *run // nil while none runs
}

// run is one run of a check.
type run struct {
	began   time.Time
	done    chan struct{} // closed when result is set
	result  CheckResult
	details *details
}

// result joins the run that is under way, or starts one, and waits for its result.
func (p *probe) result(ctx context.Context, timeout time.Duration) CheckResult {
	p.mu.Lock()
	r := p.now
	if r == nil {
		r = &run{began: time.Now(), done: make(chan struct{}), details: &details{values: map[string]any{}}}
		p.now = r
		go p.check(ctx, r, timeout) // ends with the check; Stop waits for it
	}
	p.mu.Unlock()
	select {
	case <-r.done:
		return r.result
	default:
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-r.done:
		return r.result
	case <-timer.C:
	case <-ctx.Done():
	}
	took := time.Since(r.began)
	return CheckResult{
		Error: fmt.Sprintf("no answer for %s", took.Round(time.Millisecond)), Seconds: took.Seconds(), Details: r.details.copy(),
	}
}

func (p *probe) check(ctx context.Context, r *run, timeout time.Duration) {
	// The run does not end with the request that started it: others may have joined it.
	ctx, cancel := context.WithTimeout(context.WithValue(context.WithoutCancel(ctx), detailsKey{}, r.details), timeout)
	defer cancel()
	err := p.guarded(ctx)
	r.result = CheckResult{OK: err == nil, Seconds: time.Since(r.began).Seconds(), Details: r.details.copy()}
	if err != nil {
		r.result.Error = err.Error()
	}
	p.mu.Lock()
	p.now = nil
	p.mu.Unlock()
	close(r.done)
}

func (p *probe) guarded(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return p.Check(ctx)
}

func (p *probe) wait(ctx context.Context) error {
	p.mu.Lock()
	r := p.now
	p.mu.Unlock()
	if r == nil {
		return nil
	}
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
