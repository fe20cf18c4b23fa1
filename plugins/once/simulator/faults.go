package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Faults are the failures of a far side. The zero value has none. Rates are between 0 and 1. Those of
// each attempt (throttle, fail, timeout, reset) add up to at most 1. In JSON durations are strings
// such as "5ms".
type Faults struct {
	Latency      time.Duration `yaml:"latency" json:"-"`                   // before every answer
	Jitter       time.Duration `yaml:"jitter" json:"-"`                    // maximum addition
	FailRate     float64       `yaml:"fail_rate" json:"fail_rate"`         // 500, not executed
	TimeoutRate  float64       `yaml:"timeout_rate" json:"timeout_rate"`   // executed, no answer
	ResetRate    float64       `yaml:"reset_rate" json:"reset_rate"`       // executed, then cut
	RejectRate   float64       `yaml:"reject_rate" json:"reject_rate"`     // permanent 422, by key
	ThrottleRate float64       `yaml:"throttle_rate" json:"throttle_rate"` // 429, not executed
	RetryAfter   time.Duration `yaml:"retry_after" json:"-"`               // default 1s
	PoisonRate   float64       `yaml:"poison_rate" json:"poison_rate"`     // by key, not executed
	PerSecond    int           `yaml:"per_second" json:"per_second"`       // 429 beyond it; 0: no limit
	Silence      bool          `yaml:"silence" json:"silence"`             // no answer, not executed
	Down         bool          `yaml:"down" json:"down"`                   // refuses to connect
	DownFor      time.Duration `yaml:"down_for" json:"-"`                  // 0: until SetFaults
	Unauthorized bool          `yaml:"unauthorized" json:"unauthorized"`   // 401 to everything
	Seed         uint64        `yaml:"seed" json:"seed"`                   // of all draws
}

// Validate reports all errors at once.
func (f Faults) Validate() error {
	var errs []error
	for _, r := range []struct {
		name string
		rate float64
	}{
		{"fail_rate", f.FailRate}, {"timeout_rate", f.TimeoutRate}, {"reset_rate", f.ResetRate},
		{"reject_rate", f.RejectRate}, {"throttle_rate", f.ThrottleRate}, {"poison_rate", f.PoisonRate},
	} {
		if !(r.rate >= 0 && r.rate <= 1) {
			errs = append(errs, fmt.Errorf("%s must be between 0 and 1, got %v", r.name, r.rate))
		}
	}
	if sum := f.ThrottleRate + f.FailRate + f.TimeoutRate + f.ResetRate; sum > 1 {
		errs = append(errs, fmt.Errorf("throttle_rate, fail_rate, timeout_rate and reset_rate must add up to at most 1, got %v", sum))
	}
	if f.PerSecond < 0 {
		errs = append(errs, fmt.Errorf("per_second must not be negative, got %d", f.PerSecond))
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"latency", f.Latency}, {"jitter", f.Jitter}, {"retry_after", f.RetryAfter}, {"down_for", f.DownFor}} {
		if d.d < 0 {
			errs = append(errs, fmt.Errorf("%s must not be negative, got %s", d.name, d.d))
		}
	}
	return errors.Join(errs...)
}

type outcome uint8

const (
	succeed outcome = iota
	throttle
	fail
	timeout
	reset
)

type fate struct {
	outcome outcome
	latency time.Duration
}

// Salts separate the draws of one key.
const (
	saltOutcome = 0x6f7574636f6d6500
	saltJitter  = 0x6a69747465720000
	saltReject  = 0x72656a6563740000
	saltLookup  = 0x6c6f6f6b75700000
	saltPoison  = 0x706f69736f6e0000
)

// fate draws the outcome of the attempt-th request with this key, attempt from 1.
func (f *Faults) fate(key string, attempt uint32, salt uint64) fate {
	x := fate{latency: f.Latency}
	if f.Jitter > 0 {
		x.latency += time.Duration(draw(f.Seed^saltJitter^salt, key, attempt) * float64(f.Jitter))
	}
	u := draw(f.Seed^saltOutcome^salt, key, attempt)
	for _, o := range [...]struct {
		rate    float64
		outcome outcome
	}{{f.ThrottleRate, throttle}, {f.FailRate, fail}, {f.TimeoutRate, timeout}, {f.ResetRate, reset}} {
		if u < o.rate {
			x.outcome = o.outcome
			return x
		}
		u -= o.rate
	}
	return x
}

// rejects reports whether this key is refused permanently.
func (f *Faults) rejects(key string) bool {
	return f.RejectRate > 0 && draw(f.Seed^saltReject, key, 0) < f.RejectRate
}

// poison is the answer to every request of a key.
type poison uint8

const (
	wholesome       poison = iota
	absent                 // 404 with API.Absent
	blocked                // 403 with API.Blocked
	forbidden              // 403 with another code
	proxied                // 403 without a code
	throttledAlways        // 429 with Retry-After 60
	goneLookup             // 500, and its lookups 410 with a code
	proxiedLookup          // 500, and its lookups 410 without a code
	poisons
)

func (f *Faults) poison(key string) poison {
	if f.PoisonRate <= 0 || draw(f.Seed^saltPoison, key, 0) >= f.PoisonRate {
		return wholesome
	}
	return wholesome + 1 + poison(draw(f.Seed^saltPoison, key, 1)*float64(poisons-1))
}

func (f *Faults) retryAfterSeconds() int64 {
	return max(1, int64((f.RetryAfter+time.Second-1)/time.Second))
}

// draw returns a number in [0,1) that depends on its arguments only (FNV-1a and splitmix64).
func draw(seed uint64, key string, attempt uint32) float64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h ^= mix(seed + uint64(attempt)*0x9e3779b97f4a7c15)
	return float64(mix(h)>>11) / (1 << 53)
}

func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// pace counts requests for Faults.PerSecond.
type pace struct {
	mu    sync.Mutex
	begin time.Time // of the second that is counted
	n     int
}

// admits counts a request, unless limit were counted in this second.
func (p *pace) admits(limit int, now time.Time) (ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.begin) >= time.Second {
		p.begin, p.n = now, 0
	}
	if p.n >= limit {
		return false
	}
	p.n++
	return true
}

type faultFields Faults // without methods

// faultsJSON adds the durations as strings.
type faultsJSON struct {
	faultFields
	Latency    string `json:"latency,omitempty"`
	Jitter     string `json:"jitter,omitempty"`
	RetryAfter string `json:"retry_after,omitempty"`
	DownFor    string `json:"down_for,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (f Faults) MarshalJSON() ([]byte, error) {
	text := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	return json.Marshal(faultsJSON{faultFields(f), text(f.Latency), text(f.Jitter), text(f.RetryAfter), text(f.DownFor)})
}

// UnmarshalJSON implements json.Unmarshaler. An unknown field is an error.
func (f *Faults) UnmarshalJSON(data []byte) error {
	var w faultsJSON
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return err
	}
	*f = Faults(w.faultFields)
	for _, s := range []struct {
		name, text string
		to         *time.Duration
	}{{"latency", w.Latency, &f.Latency}, {"jitter", w.Jitter, &f.Jitter}, {"retry_after", w.RetryAfter, &f.RetryAfter}, {"down_for", w.DownFor, &f.DownFor}} {
		if s.text == "" {
			continue
		}
		v, err := time.ParseDuration(s.text)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		*s.to = v
	}
	return nil
}
