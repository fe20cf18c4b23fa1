package simulator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Faults is how the API misbehaves. The zero value does not. Rates are between 0 and 1, and those
// that are drawn for every attempt (throttle, fail, timeout, reset) add up to at most 1. In JSON
// durations are strings such as "5ms".
type Faults struct {
	Latency      time.Duration `yaml:"latency"`       // before every answer
	Jitter       time.Duration `yaml:"jitter"`        // up to so much more
	FailRate     float64       `yaml:"fail_rate"`     // 500, not charged
	TimeoutRate  float64       `yaml:"timeout_rate"`  // charged, then silence until the caller gives up
	ResetRate    float64       `yaml:"reset_rate"`    // charged, then the connection is cut
	RejectRate   float64       `yaml:"reject_rate"`   // 422 for good, by key
	ThrottleRate float64       `yaml:"throttle_rate"` // 429 with RetryAfter, not charged
	RetryAfter   time.Duration `yaml:"retry_after"`   // rounded up to seconds; default 1s
	PoisonRate   float64       `yaml:"poison_rate"`   // always answered badly, by key; not charged
	Silence      bool          `yaml:"silence"`       // nothing is answered, nothing is charged
	Down         bool          `yaml:"down"`          // connections are refused
	DownFor      time.Duration `yaml:"down_for"`      // Down ends by itself after so long; 0: when told
	Unauthorized bool          `yaml:"unauthorized"`  // 401 to everything
	Seed         uint64        `yaml:"seed"`          // another seed breaks other calls
}

// Validate reports every mistake at once.
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

// outcome is what happens to one attempt.
type outcome uint8

const (
	charge outcome = iota
	throttle
	fail
	timeout
	reset
)

// fate is the lot of one attempt.
type fate struct {
	outcome outcome
	latency time.Duration
}

// Salts keep the draws of different questions apart.
const (
	saltOutcome = 0x6f7574636f6d6500
	saltJitter  = 0x6a69747465720000
	saltReject  = 0x72656a6563740000
	saltLookup  = 0x6c6f6f6b75700000
	saltPoison  = 0x706f69736f6e0000
)

// fate draws what happens to the attempt-th request with this key, attempt from 1.
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

// rejects reports whether this key is refused for good.
func (f *Faults) rejects(key string) bool {
	return f.RejectRate > 0 && draw(f.Seed^saltReject, key, 0) < f.RejectRate
}

// poison is how a key is always answered.
type poison uint8

const (
	wholesome       poison = iota
	noMember               // 404 with a code of the contract that is about the payout
	blockedMember          // 403 with such a code
	forbidden              // 403 with another code
	proxied                // 403 without a code
	throttledAlways        // 429 with Retry-After 60
	goneLookup             // 500, and its lookups 410 with a code
	proxiedLookup          // 500, and its lookups 410 without a code
	poisons
)

// poison draws how this key is always answered.
func (f *Faults) poison(key string) poison {
	if f.PoisonRate <= 0 || draw(f.Seed^saltPoison, key, 0) >= f.PoisonRate {
		return wholesome
	}
	return wholesome + 1 + poison(draw(f.Seed^saltPoison, key, 1)*float64(poisons-1))
}

// retryAfterSeconds is the Retry-After header's value.
func (f *Faults) retryAfterSeconds() int64 {
	if f.RetryAfter <= 0 {
		return 1
	}
	return int64((f.RetryAfter + time.Second - 1) / time.Second)
}

// draw returns a number in [0,1) that depends on its arguments only: FNV-1a over the key, finished
// with splitmix64.
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

// faultsJSON is Faults on the wire.
type faultsJSON struct {
	Latency      string  `json:"latency,omitempty"`
	Jitter       string  `json:"jitter,omitempty"`
	FailRate     float64 `json:"fail_rate"`
	TimeoutRate  float64 `json:"timeout_rate"`
	ResetRate    float64 `json:"reset_rate"`
	RejectRate   float64 `json:"reject_rate"`
	ThrottleRate float64 `json:"throttle_rate"`
	PoisonRate   float64 `json:"poison_rate"`
	RetryAfter   string  `json:"retry_after,omitempty"`
	Silence      bool    `json:"silence"`
	Down         bool    `json:"down"`
	DownFor      string  `json:"down_for,omitempty"`
	Unauthorized bool    `json:"unauthorized"`
	Seed         uint64  `json:"seed"`
}

// MarshalJSON writes durations as strings.
func (f Faults) MarshalJSON() ([]byte, error) {
	text := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	return json.Marshal(faultsJSON{
		text(f.Latency), text(f.Jitter), f.FailRate, f.TimeoutRate, f.ResetRate, f.RejectRate, f.ThrottleRate, f.PoisonRate,
		text(f.RetryAfter), f.Silence, f.Down, text(f.DownFor), f.Unauthorized, f.Seed,
	})
}

// UnmarshalJSON reads what MarshalJSON writes; an unknown field is an error.
func (f *Faults) UnmarshalJSON(data []byte) error {
	var w faultsJSON
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&w); err != nil {
		return err
	}
	*f = Faults{
		FailRate: w.FailRate, TimeoutRate: w.TimeoutRate, ResetRate: w.ResetRate, RejectRate: w.RejectRate,
		ThrottleRate: w.ThrottleRate, PoisonRate: w.PoisonRate, Silence: w.Silence, Down: w.Down, Unauthorized: w.Unauthorized, Seed: w.Seed,
	}
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
