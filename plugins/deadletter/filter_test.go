package deadletter

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
)

// A value that no dead letter has is an error, also in an empty store.
func TestUnknownValuesOfFilters(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		for _, args := range [][]string{{"list", "--class", "rejectd"}, {"replay", "--handler", "x", "--why", "x"}, {"discard", "--fingerprint", "0123", "--dry-run"}, {"list", "--group", "--plugin", "x"}} {
			out, code := o.run(args...)
			require.Equal(t, app.ExitUsage, code, "as in a store with dead letters: %s", out)
			require.Contains(t, out, "; the store has: none")
		}
		o.put(order(1), order(2), payoutDeadLetter(5))
		print := order(1)
		require.NoError(t, o.store.Discard(t.Context(), payoutDeadLetter(5).ID, store.By{Who: "ann", Why: "x"}))
		list, _, err := o.store.List(t.Context(), store.Filter{IDs: []string{print.ID}}, 1)
		require.NoError(t, err)
		fingerprint := list[0].Fingerprint

		for flag, wrong := range map[string]struct{ word, want string }{
			"--class":       {"rejectd", `--class: no dead letter has "rejectd"; did you mean "rejected"? The store has: rejected, undecodable`},
			"--plugin":      {"payout", `--plugin: no dead letter has "payout"; did you mean "payouts"? The store has: payouts, orders`},
			"--source":      {"nowhere", `--source: no dead letter has "nowhere"; the store has: orders, payouts`},
			"--handler":     {"Orders.take", `--handler: no dead letter has "Orders.take"; did you mean "orders.take"? The store has: orders.take, payouts.pay`},
			"--fingerprint": {"zzzzzzzzzzzz", `--fingerprint: no dead letter has "zzzzzzzzzzzz"; the store has: `},
		} {
			for _, command := range [][]string{{"list"}, {"list", "--group"}, {"replay", "--why", "x"}, {"replay", "--dry-run"}, {"discard", "--why", "x"}, {"discard", "--dry-run"}} {
				out, code := o.run(append(command, flag, wrong.word)...)
				require.Equal(t, app.ExitUsage, code, "%v %s: %s", command, flag, out)
				require.Contains(t, out, wrong.want)
			}
		}
		for _, word := range []string{"\xff\x00", strings.Repeat("x", 5000), "%", "'"} {
			_, code := o.run("list", "--class", word)
			require.Equal(t, app.ExitUsage, code, "%q", word)
		}
		require.Zero(t, o.report(0, "replay", "--class", "rejected", "--why", "x").Selected, "a discarded one has it: the value is no error, and none is selected")
		out, code := o.run("list", "--class", "rejected", "--handler", "orders.take")
		require.Equal(t, 0, code)
		require.Equal(t, "No dead letters.\n", out)
		out, code = o.run("list", "--fingerprint", fingerprint[:4], "--json")
		require.Equal(t, 0, code)
		require.Contains(t, out, `"total": 2`)
		require.Equal(t, 2, o.report(0, "discard", "--fingerprint", fingerprint[:5], "--why", "x").Discarded)
	})
}

func TestManyValuesAreNamedInPart(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		for n := range 13 {
			l := order(n)
			l.Class = fmt.Sprint("class_", string(rune('a'+n)))
			o.put(l)
		}
		out, code := o.run("list", "--class", "klass_m")
		require.Equal(t, app.ExitUsage, code)
		require.Contains(t, out, `did you mean "class_m"? The store has: class_m, class_a, class_b,`)
		require.Contains(t, out, "class_i and 3 more")
	})
}

func TestPrefixesOfIDs(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		for n, id := range []string{"abcd", "abcd1", "wxyz11", "wxyz12", "wxyz13", "wxyz14", "wxyz15", "wxyz16", "wxyz20"} {
			l := order(n)
			l.ID = id
			o.put(l)
		}
		for given, want := range map[string]string{"abcd": "abcd", "abcd1": "abcd1", "wxyz2": "wxyz20", "wxyz20": "wxyz20"} {
			out, code := o.run("show", given)
			require.Equal(t, 0, code, out)
			require.Contains(t, out, " "+want+", open")
		}
		for given, want := range map[string]string{
			"wxyz1": `dead letter "wxyz1" is the prefix of wxyz11, wxyz12, wxyz13, wxyz14, wxyz15 and others: use a longer one`,
			"abc":   `dead letter "abc" is too short: a prefix has at least 4 characters`,
		} {
			for _, command := range [][]string{{"show"}, {"replay", "--why", "x"}, {"discard", "--dry-run"}} {
				out, code := o.run(append(command, given)...)
				require.Equal(t, app.ExitUsage, code, "%v: %s", command, out)
				require.Contains(t, out, want)
			}
		}
		_, code := o.run("show", "nothing")
		require.Equal(t, app.ExitBad, code, "an id may be that of a pruned dead letter")
		require.Equal(t, 2, o.report(0, "discard", "wxyz2", "wxyz20", "abcd1", "--why", "x").Discarded, "each once")
		require.Equal(t, store.Open, o.state("abcd"))
	})
}

// Two campaigns with one fault share class, route and fingerprint. Their dead letters are told apart by
// their subjects: a subject selects its parts, and no subject that merely begins alike.
func TestTheDeadLettersOfOneCampaign(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		about := func(n int, subject string) store.DeadLetter {
			d := payoutDeadLetter(n)
			d.Subject, d.Lineage = subject, store.LineageOf("payouts", subject)
			return d
		}
		o.put(about(1, "POINT:77:1"), about(2, "POINT:77:2"), about(3, "POINT:7:1"), about(4, "POINT:771:1"), about(5, "VOUCHER:77:1"), order(6))
		for subject, n := range map[string]int{"POINT:77": 2, "POINT:77:2": 1, "POINT:7": 1, "POINT": 4, "VOUCHER": 1} {
			out, code := o.run("list", "--subject", subject, "--json")
			require.Equal(t, 0, code, out)
			require.Contains(t, out, fmt.Sprintf(`"total": %d`, n), subject)
		}
		for _, subject := range []string{"POINT:", "POINT:77:", "POINT:77:22", "OINT:77", "%", "'", "POINT:78"} {
			out, code := o.run("replay", "--subject", subject, "--why", "x")
			require.Equal(t, app.ExitUsage, code, out)
			require.Contains(t, out, "--subject: no dead letter is about")
		}
		require.Equal(t, 2, o.report(0, "discard", "--subject", "POINT:77", "--why", "x").Discarded)
		out, code := o.run("list", "--json")
		require.Equal(t, 0, code)
		require.Contains(t, out, `"total": 4`)
	})
}

// A list that is longer than its limit goes on with the id of its last dead letter, or a prefix of it.
func TestAListGoesOn(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		for n := range 5 {
			o.put(order(n))
		}
		o.put(payoutDeadLetter(5))
		var page struct {
			Total       int                `json:"total"`
			DeadLetters []store.DeadLetter `json:"dead_letters"`
			Next        string             `json:"next"`
		}
		var seen []string
		left := 5
		for args := []string{"list", "--source", "orders", "--limit", "2", "--json"}; ; {
			page.Next = ""
			out, code := o.run(args...)
			require.Equal(t, 0, code, out)
			require.NoError(t, json.Unmarshal([]byte(out), &page))
			require.Equal(t, left, page.Total)
			left -= len(page.DeadLetters)
			for _, d := range page.DeadLetters {
				seen = append(seen, d.ID)
			}
			if page.Next == "" {
				break
			}
			args = append(args[:6:6], "--before", page.Next[:12])
		}
		require.Equal(t, []string{order(4).ID, order(3).ID, order(2).ID, order(1).ID, order(0).ID}, seen)
		out, code := o.run("list", "--limit", "2")
		require.Equal(t, 0, code)
		require.Contains(t, out, fmt.Sprintf("… and 4 more. Go on with --before %s, or use --limit, a filter, or --group.", order(4).ID))
		for _, c := range []struct{ before, more, says string }{
			{"nothing", "--limit=1", `--before: no dead letter has the id "nothing"; it may have been pruned`},
			{order(4).ID, "--group", "--before goes on with a list of dead letters, and not with --group"},
			{order(4).ID[:2], "--limit=1", "is too short"},
		} {
			out, code = o.run("list", "--before", c.before, c.more)
			require.Equal(t, app.ExitUsage, code, out)
			require.Contains(t, out, c.says)
		}
	})
}
