package campaign

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// stamp writes a point in time; - is none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// age writes a duration; - is none.
func age(d time.Duration) string {
	if d <= 0 {
		return "-"
	}
	return d.Round(time.Second).String()
}

// when writes t relative to now.
func when(t, now time.Time) string {
	if d := t.Sub(now).Round(time.Second); d > 0 {
		return fmt.Sprintf("in %s (%s)", d, stamp(t))
	} else if d < 0 {
		return fmt.Sprintf("%s ago (%s)", -d, stamp(t))
	}
	return "now"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func upper(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}

func promotionState(s rules.GroupState, finished bool) string {
	if finished && s == rules.GroupRunning {
		return "FINISHED"
	}
	return string(s)
}

// MissingText says how many of the announced payouts are accepted, for a promotion that runs and has nothing left to do
// until more of their records come. It is empty for any other.
func MissingText(s rules.GroupState, c ledger.PayoutCounts, announced int64) string {
	if s != rules.GroupRunning || c.Pending > 0 || c.Accepted >= announced {
		return ""
	}
	return fmt.Sprintf(", %s of %s accepted", app.Thousands(c.Accepted), app.Thousands(announced))
}

// person names an operator: the given name and the database's role.
func person(a ledger.Audit) string {
	if a.DBUser == "" {
		return app.Printable(a.Who)
	}
	return fmt.Sprintf("%s (database user %s)", app.Printable(a.Who), a.DBUser)
}
