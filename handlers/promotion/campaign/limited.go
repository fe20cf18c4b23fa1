package campaign

import (
	"fmt"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// limitedBy says that the Money API refuses more calls, or that instances make nearly all the calls for a promotion that
// they may make at once, or nothing.
func (s Status) limitedBy() string {
	if s.Pending == 0 || s.State == rules.GroupPaused {
		return ""
	}
	calling, places, readers, paced := 0, 0, 0, 0
	pace := 0.0
	for _, i := range s.Instances {
		if i.Note == nil || i.Note.Recent == nil || i.Note.Client.Why() != "" {
			continue
		}
		if i.Note.Client.Pace > 0 {
			pace, paced = pace+i.Note.Client.Pace, paced+1
		}
		calling, places, readers = calling+i.Note.Recent.Calling, places+min(i.Slots, i.Note.Client.Limit), readers+1
	}
	if paced > 0 {
		return fmt.Sprintf("the Money API: it refused too many calls (429), so about %.0f a second begin on %s, and more as it answers them", pace, app.Plural(int64(paced), "instance"))
	}
	if places == 0 || 10*calling < 9*places { // a worker that stores an answer makes no call
		return ""
	}
	text := fmt.Sprintf("the calls at once: %d of at most %d run, on %s", calling, places, app.Plural(int64(readers), "instance"))
	if s.Rate.P50 > 0 {
		text += fmt.Sprintf(", and half of them take up to %s", seconds(s.Rate.P50))
	}
	return text + ". More instances make it faster, and so do more calls per instance (plugins.promotion.stream.tiers and max_consumers_per_instance), as far as the Money API bears them"
}
