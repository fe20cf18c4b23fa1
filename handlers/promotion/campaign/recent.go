package campaign

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Note is what an instance writes about a promotion next to its state in the promotion's stream.
type Note struct {
	// Recent is nil for a promotion that the instance did nothing for within a minute.
	Recent *payout.RecentStatus `json:"recent,omitempty"`
	Client Client               `json:"client"`
}

// Client is the state of the client of the Money API in one instance, for all promotions.
type Client struct {
	Breaker       string `json:"breaker"` // closed, half-open or open
	Throttled     bool   `json:"throttled,omitempty"`
	Misconfigured bool   `json:"misconfigured,omitempty"`
	// Pace is how many calls per second begin, because the Money API refused more. 0: any number.
	Pace  float64 `json:"pace,omitempty"`
	Limit int     `json:"limit"` // calls at once
	// Since is when the process of the instance began to pay. Zero: not known.
	Since time.Time `json:"since,omitzero"`
}

// BreakerClosed is Client.Breaker of one that lets calls through.
const BreakerClosed = "closed"

// Instance is an instance that reads the stream of a promotion.
type Instance struct {
	streams.InstanceStatus
	// Note is nil when the instance wrote none, such as one of an older version.
	Note *Note `json:"note,omitempty"`
}

func instancesOf(all []streams.InstanceStatus) []Instance {
	list := []Instance{}
	for _, s := range all {
		one := Instance{InstanceStatus: s}
		var n Note
		if len(s.Note) > 0 && json.Unmarshal(s.Note, &n) == nil {
			one.Note = &n
		}
		one.InstanceStatus.Note = nil // decoded
		list = append(list, one)
	}
	return list
}

// Rate is what all instances did for a promotion within the last minute.
type Rate struct {
	// PerSecond are the payouts that were settled.
	PerSecond float64 `json:"payouts_per_second"`
	Calling   int     `json:"calling"` // calls that run now
	// Answers of the Money API, by class.
	Answers map[string]int64 `json:"answers"`
	// Latency of the calls, in seconds and rounded up by at most a quarter; 0 without a call.
	P50 float64 `json:"p50_seconds"`
	P99 float64 `json:"p99_seconds"`
	// NotTaking are the instances whose client sends no call now, with the reason.
	NotTaking map[string]string `json:"not_taking"`
	// Limit is the sum of the calls at once that the clients of the instances allow, for all promotions.
	Limit int `json:"limit"`
	// Seconds is the time that PerSecond looks back: less than a minute after a resume.
	Seconds float64 `json:"seconds"`
	// Started are the instances that were started within the last minute, which do not know what was before, with
	// the seconds since.
	Started map[string]float64 `json:"started_seconds_ago,omitempty"`

	instances int     // that say something
	stopped   float64 // the part of PerSecond of those that send no call now
}

// recentSeconds is the time that a rate looks back.
const recentSeconds = 60

// Stopped says why no instance sends a call now, or "" if one does.
func (r *Rate) Stopped() string {
	if r == nil || len(r.NotTaking) == 0 || len(r.NotTaking) < r.instances {
		return ""
	}
	reasons := slices.Compact(slices.Sorted(maps.Values(r.NotTaking)))
	if len(reasons) > 1 {
		return "no instance sends calls"
	}
	return reasons[0]
}

// WindowText says what time the rate is of.
func (r Rate) WindowText() string {
	if resumed := int(r.Seconds); resumed < recentSeconds {
		return fmt.Sprintf("in the %ds since it was resumed", resumed)
	}
	return r.MinuteText()
}

// MinuteText says what time the answers are of.
func (r Rate) MinuteText() string {
	if len(r.Started) == 0 {
		return "in the last minute"
	}
	names := slices.SortedFunc(maps.Keys(r.Started), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.Started[b], r.Started[a]), cmp.Compare(a, b))
	})
	first := fmt.Sprintf("since the start of %s %ds ago", app.Printable(names[0]), int(r.Started[names[0]]))
	if len(names) == r.instances {
		return first
	}
	return fmt.Sprintf("in the last minute, without what was before the start of %s", app.Plural(int64(len(names)), "instance"))
}

// rateOf returns nil when no instance says anything. resumed is for how long the promotion has run since a resume, and 0
// for one that was never paused: the pause does not count.
func rateOf(all []Instance, resumed time.Duration, now time.Time) *Rate {
	r := Rate{Answers: map[string]int64{}, NotTaking: map[string]string{}, Started: map[string]float64{}, Seconds: recentSeconds}
	if resumed > 0 {
		r.Seconds = min(r.Seconds, resumed.Seconds())
	}
	var took []int64
	for _, i := range all {
		if i.Note == nil {
			continue
		}
		r.instances++
		if ran := now.Sub(i.Note.Client.Since).Seconds(); ran < recentSeconds {
			r.Started[i.Instance] = max(0, ran)
		}
		r.Limit += i.Note.Client.Limit
		why := i.Note.Client.Why()
		if why != "" {
			r.NotTaking[i.Instance] = why
		}
		if i.Note.Recent == nil {
			continue
		}
		r.Calling += i.Note.Recent.Calling
		settled, seconds := i.Note.Recent.Settled, i.Note.Recent.Seconds
		if r.Seconds < recentSeconds {
			settled, seconds = i.Note.Recent.SettledWithin(resumed)
		}
		if seconds > 0 {
			perSecond := float64(settled) / max(1, seconds)
			r.PerSecond += perSecond
			if why != "" {
				r.stopped += perSecond
			}
		}
		for class, n := range i.Note.Recent.Answers {
			r.Answers[class] += n
		}
		for step, n := range i.Note.Recent.Took {
			for len(took) <= step {
				took = append(took, 0)
			}
			took[step] += n
		}
	}
	if r.instances == 0 {
		return nil
	}
	r.P50, r.P99 = quantile(took, 0.5).Seconds(), quantile(took, 0.99).Seconds()
	return &r
}

// Why says why a client sends no call, or "".
func (c Client) Why() string {
	switch {
	case c.Misconfigured:
		return "the Money API refuses our credential, permission or address"
	case c.Breaker != BreakerClosed:
		return "breaker " + c.Breaker
	case c.Throttled:
		return "the Money API asked all calls to wait"
	}
	return ""
}

// quantile returns the upper bound of the step that has the quantile, and 0 without calls.
func quantile(took []int64, q float64) time.Duration {
	var all, below int64
	for _, n := range took {
		all += n
	}
	for step, n := range took {
		if below += n; n > 0 && float64(below) >= q*float64(all) {
			return payout.LatencyOf(step)
		}
	}
	return 0
}

// AnswersText names the answers of the last minute, the most frequent first.
func (r Rate) AnswersText() string {
	classes := slices.SortedFunc(maps.Keys(r.Answers), func(a, b string) int {
		if r.Answers[a] != r.Answers[b] {
			return int(r.Answers[b] - r.Answers[a])
		}
		return strings.Compare(a, b)
	})
	var all []string
	for _, class := range classes {
		all = append(all, app.Thousands(r.Answers[class])+" "+class)
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// BreakerText says whether the clients of all instances send calls.
func (r Rate) BreakerText() string {
	if len(r.NotTaking) == 0 {
		return BreakerClosed
	}
	var all []string
	for _, instance := range slices.Sorted(maps.Keys(r.NotTaking)) {
		all = append(all, instance+": "+r.NotTaking[instance])
	}
	return strings.Join(all, "; ")
}

// LatencyText has the two quantiles.
func (r Rate) LatencyText() string {
	if r.P99 == 0 {
		return "no call"
	}
	return fmt.Sprintf("half of the calls took at most %s, 99 %% at most %s", seconds(r.P50), seconds(r.P99))
}

// perSecondText is the rate with a digit after the point where it is small.
func (r Rate) perSecondText() string {
	return operate.PerSecond(r.PerSecond, app.Thousands)
}

func seconds(s float64) time.Duration {
	d := time.Duration(s * float64(time.Second))
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Millisecond)
}
