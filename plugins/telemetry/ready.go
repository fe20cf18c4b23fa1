package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Readiness is the body of /readyz and /readyz/serving.
type Readiness struct {
	Ready bool   `json:"ready"`
	Phase string `json:"phase"` // starting, running or draining
	// Instance, Environment and Process say who answers, so that a command does not take it for another one. Process
	// is that of operate.Membership, and empty without one or while it does not run.
	Instance    string                 `json:"instance"`
	Environment string                 `json:"environment"`
	Process     string                 `json:"process,omitempty"`
	Checks      map[string]CheckResult `json:"checks"`
	// Conditions are what the plugins of this instance know, such as a far side that does not work. They decide
	// nothing about Ready, and are written only with the query parameter verbose or conditions.
	Conditions []operate.Condition `json:"conditions,omitempty"`
}

// CheckResult is the result of the last run of a check. A result that is older than three intervals
// is a failure, whatever the run returned.
type CheckResult struct {
	OK       bool           `json:"ok"`
	Error    string         `json:"error,omitempty"`
	Seconds  float64        `json:"seconds"`           // how long the run took
	Measured time.Time      `json:"measured,omitzero"` // when the run ended; zero: no run has ended
	Details  map[string]any `json:"details,omitempty"` // of Detail; only with ?verbose
}

// Detail adds a value to the result of a health check, such as the age of the oldest unpaid target.
// /readyz?verbose shows it. ctx is that of the check; with any other Detail does nothing. The value
// must be one that JSON can hold, and must not change afterwards. Detail is safe for concurrent use.
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
	return maps.Clone(d.values)
}

// printable replaces the values that JSON can't hold by their text.
func printable(values map[string]any) map[string]any {
	for k, v := range values {
		if _, err := json.Marshal(v); err != nil {
			values[k] = fmt.Sprint(v)
		}
	}
	return values
}

// ready answers from the last results of the checks that count, so a request costs no server
// anything and never waits for a check. It answers 503 if one has failed, and unless the process is
// running. During the drain it shows no checks, because services stop. Details can be long, one per
// promotion, so they are written only with the query parameter verbose.
func (s *server) ready(counts func(*probe) bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		phase := s.now()
		who := operate.IdentityOf(s.registry)
		answer := Readiness{
			Ready: phase == running, Phase: string(phase), Instance: who.Instance, Environment: who.Environment, Process: who.Process, Checks: map[string]CheckResult{},
		}
		for _, p := range s.probes {
			if phase == draining || !counts(p) {
				continue
			}
			result := p.result(time.Now())
			if r.URL.Query().Has("verbose") {
				result.Details = printable(result.Details)
			} else {
				result.Details = nil
			}
			answer.Checks[p.Name] = result
			answer.Ready = answer.Ready && result.OK
		}
		if q := r.URL.Query(); phase == running && (q.Has("verbose") || q.Has("conditions")) {
			answer.Conditions = operate.Conditions(s.registry)
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

// health exports the results of the checks of /readyz as a metric. A scrape runs no check.
type health struct{ *server }

func (health) desc() *prometheus.Desc {
	return prometheus.NewDesc("millrace_health_check_ok", "1 while a check of /readyz passes, else 0.", []string{"check"}, nil)
}

func (h health) Describe(ch chan<- *prometheus.Desc) { ch <- h.desc() }

func (h health) Collect(ch chan<- prometheus.Metric) {
	for _, p := range h.probes {
		ok := 0.0
		if p.result(time.Now()).OK {
			ok = 1
		}
		ch <- prometheus.MustNewConstMetric(h.desc(), prometheus.GaugeValue, ok, p.Name)
	}
}

// staleAfter is the age of a result at which its check counts as failed, in intervals. Health is
// progress: a check that does not end says nothing about the present.
const staleAfter = 3

// probe runs one check at its interval and keeps the last result. Each probe has a goroutine of its
// own, so a check that hangs delays no other.
type probe struct {
	pipeline.HealthCheck
	interval time.Duration // between the starts of two runs; a longer run is followed by the next at once
	timeout  time.Duration // of one run

	mu      sync.Mutex // guards what follows
	last    CheckResult
	running *run // nil while none runs
}

// run is one run of a check.
type run struct {
	began   time.Time
	details *details
}

// measure runs the check until ctx ends.
func (p *probe) measure(ctx context.Context) {
	loop.Repeat(ctx, 0, func(ctx context.Context) time.Duration {
		began := time.Now()
		p.check(ctx, began)
		return max(0, p.interval-time.Since(began))
	})
}

func (p *probe) check(ctx context.Context, began time.Time) {
	r := &run{began: began, details: &details{values: map[string]any{}}}
	p.mu.Lock()
	p.running = r
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, detailsKey{}, r.details), p.timeout)
	defer cancel()
	err := p.guarded(ctx)
	ended := time.Now()
	result := CheckResult{OK: err == nil, Seconds: ended.Sub(began).Seconds(), Measured: ended, Details: r.details.copy()}
	if err != nil {
		result.Error = err.Error()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running, p.last = nil, result
}

// runs reports whether a run of the check has not returned.
func (p *probe) runs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running != nil
}

func (p *probe) guarded(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return p.Check(ctx)
}

// result returns the last result. It is a failure if the result is too old to say anything, and its
// error then says since when there is none and why.
func (p *probe) result(now time.Time) CheckResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	result := p.last
	result.Details = maps.Clone(result.Details)
	never := result.Measured.IsZero()
	if !never && now.Sub(result.Measured) <= staleAfter*p.interval {
		return result
	}
	text := "no result yet"
	if !never {
		text = fmt.Sprintf("no result since %s, for %s", result.Measured.UTC().Format(time.RFC3339), now.Sub(result.Measured).Round(time.Millisecond))
	}
	if r := p.running; r != nil {
		took := now.Sub(r.began)
		result.Seconds, result.Details = took.Seconds(), r.details.copy()
		text += fmt.Sprintf(": the check has not returned for %s", took.Round(time.Millisecond))
	} else {
		text += ": the check does not run"
	}
	if result.Error != "" {
		text += "; its last error was: " + result.Error
	}
	result.OK, result.Error = false, text
	return result
}
