package campaign

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// nextStep describes the next step of a payout, the component that takes it, and when. answer is
// the Money API's, or nil.
func nextStep(x ledger.Explanation, s Settings, dead []ExplainedDeadLetter, answer *lookup, gone string) string {
	own, others := deadLettersOf(dead)
	next := nextOf(x, s, own, answer, gone)
	if x.State == rules.Success || x.State == rules.Cancelled {
		switch {
		case own.Waits():
			next += fmt.Sprintf(" Its dead letter still waits: millrace deadletter discard %s, with --why.", own.Name)
		case own.onItsWay():
			next += " Its dead letter is not in the store yet: discard it when millrace deadletter list shows it."
		}
	}
	for _, l := range others {
		id := l.Name
		if l.Class == rules.ClassUnannounced {
			next += fmt.Sprintf(" An entry, which came while the ledger had no payout for it, waits as dead letter %s: the payout exists now. Find the program that wrote it, unless the ledger was restored; then millrace deadletter discard %s, with --why.", id, id)
			continue
		}
		next += fmt.Sprintf(" A second request for it waits as dead letter %s: ask the sender which one is right, then millrace deadletter discard %s, with --why.", id, id)
	}
	return next
}

func nextOf(x ledger.Explanation, s Settings, own ExplainedDeadLetter, answer *lookup, gone string) string {
	switch x.State {
	case rules.Success:
		return "nothing. It is paid."
	case rules.Cancelled:
		return "nothing. It was certainly not charged, and was cancelled with its promotion."
	case rules.Failed:
		if x.PromotionState == rules.GroupCancelled {
			return "nothing. It was not charged, and its promotion is cancelled."
		}
		return "nothing by itself. It was certainly not charged and is not retried; " + own.replay()
	case rules.Unknown:
		resolve := fmt.Sprintf("millrace unknown resolve %s %d %d", x.Type, x.Promotion, x.Target)
		if answer.paid() {
			return fmt.Sprintf("nothing by itself: it was charged, and the ledger has no answer. Record it: %s --paid %s, with --why.", resolve, answer.TransactionKey)
		}
		if key := x.PaidLate(); key != "" {
			return fmt.Sprintf("nothing by itself: a late answer says it was charged. Record it: %s --paid %s, with --why.", resolve, key)
		}
		return fmt.Sprintf("nothing by itself: it may have been charged, and an operator must find out. Look for the key %s in the Money API's records (campaign explain --query-api), then: "+
			"%s --paid TRANSACTION_KEY | --unpaid, with --why.", x.Key, resolve)
	}
	if x.PromotionState == rules.GroupPaused && !x.LeaseUntil.After(x.Now) {
		return fmt.Sprintf("it waits until an operator resumes the promotion (millrace campaign resume %s %d, with --why); then %s.", x.Type, x.Promotion, call(x))
	}
	next := way(x, s, gone) + " " + upper(call(x)) + "."
	if x.State == rules.Ambiguous && x.NextStep == rules.Lookup {
		next += fmt.Sprintf(" If only a proxy answers, an operator can record the outcome: millrace unknown resolve %s %d %d --force.", x.Type, x.Promotion, x.Target)
	}
	return next
}

// way says where a payout is. gone says that the instance with its lease is not heard of, if that is known.
func way(x ledger.Explanation, s Settings, gone string) string {
	switch {
	case x.LeaseUntil.After(x.Now) && gone != "":
		return fmt.Sprintf("%s; the lease ends %s and the feeder enqueues the payout %s later.", gone, when(x.LeaseUntil, x.Now), s.FeederGrace)
	case x.LeaseUntil.After(x.Now):
		return fmt.Sprintf("%s is calling the Money API since %s; its answer settles it. If %s has ended, the lease ends %s and the feeder enqueues the payout %s later.",
			x.AttemptBy, stamp(x.AttemptStartedAt), x.AttemptBy, when(x.LeaseUntil, x.Now), s.FeederGrace)
	case x.State == rules.Sending:
		return fmt.Sprintf("%s took it and did not settle it; its lease ended %s. The feeder enqueues the payout %s.",
			x.AttemptBy, when(x.LeaseUntil, x.Now), due(x.QueueDue.Add(s.FeederGrace), x.Now))
	case x.Queue == rules.QueueNone:
		return fmt.Sprintf("the feeder adds it to the promotion's stream as soon as it has room; it checks every %s.", s.FeederInterval)
	case x.Queue == rules.QueueStream:
		return fmt.Sprintf("it is in the promotion's stream since %s, and the next free worker takes it. If the stream was lost, the feeder detects that and adds it again.", stamp(x.QueueDue))
	default:
		is := "is"
		if x.QueueDue.Before(x.Now) {
			is = "was"
		}
		return fmt.Sprintf("its retry record %s due %s; if that is lost, the feeder enqueues the payout %s.", is, when(x.QueueDue, x.Now), due(x.QueueDue.Add(s.FeederGrace), x.Now))
	}
}

func call(x ledger.Explanation) string {
	switch x.NextStep {
	case rules.Send:
		again := ""
		if x.PerhapsDone() || x.State == rules.Sending {
			again = " again; it may have been charged, and the key makes that harmless"
		}
		return fmt.Sprintf("the request is sent with the key %s%s", x.Key, again)
	case rules.Lookup:
		if !x.MaybeDone && x.State != rules.Sending {
			return fmt.Sprintf("the key %s is looked up, because it was first used longer than idempotency_ttl ago; if there is no charge, the request is sent", x.Key)
		}
		return fmt.Sprintf("the key %s is looked up; nothing is sent before the Money API has answered", x.Key)
	case rules.Ack:
		return "it is settled without another call: the promotion is cancelled, or all attempts are used up"
	default:
		return "it is checked again"
	}
}

// due is when, for what the feeder does in its next round once t has passed.
func due(t, now time.Time) string {
	if !t.After(now) {
		return "in its next round"
	}
	return when(t, now)
}
