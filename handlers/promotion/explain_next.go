package promotion

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
)

// whatNext says in plain words what becomes of a payout, who does it, and when. asked is what the Money API says, or nil.
func whatNext(x ledger.Explanation, c *Config, dead []ExplainedLetter, asked *lookup) string {
	own, others := lettersOf(dead)
	next := nextOf(x, c, own, asked)
	if x.State == ledger.Success || x.State == ledger.Cancelled {
		switch {
		case own.Waits():
			next += fmt.Sprintf(" Its dead letter still waits: millrace dead discard %s, with --why.", own.Name)
		case own.onItsWay():
			next += " Its dead letter is still on its way: when millrace dead list shows it, discard it."
		}
	}
	for _, l := range others {
		id := l.Name
		if l.Class == ledger.ClassUnannounced {
			next += fmt.Sprintf(" An entry that no record had announced waits as dead letter %s: find out which program wrote it, then millrace dead discard %s, with --why.", id, id)
			continue
		}
		next += fmt.Sprintf(" A second request for it waits as dead letter %s: ask whoever sent it which one was meant, then millrace dead discard %s, with --why.", id, id)
	}
	return next
}

func nextOf(x ledger.Explanation, c *Config, own ExplainedLetter, asked *lookup) string {
	switch x.State {
	case ledger.Success:
		return "nothing. It is paid."
	case ledger.Cancelled:
		return "nothing. It was cancelled with its promotion before anything was sent."
	case ledger.Failed:
		if x.PromotionState == ledger.PromotionCancelled {
			return "nothing. It was not charged, and its promotion is cancelled."
		}
		return "nothing by itself. It was certainly not charged and was given up; " + own.replay()
	case ledger.Unknown:
		resolve := fmt.Sprintf("millrace unknown resolve %s %d %d", x.Type, x.Promotion, x.Target)
		if asked.paid() {
			return fmt.Sprintf("nothing by itself: it was charged, and the service doesn't know. Tell it: %s --paid %s, with --why.", resolve, asked.TransactionKey)
		}
		if key := x.PaidLate(); key != "" {
			return fmt.Sprintf("nothing by itself: an answer that came too late says it was charged. Tell the service: %s --paid %s, with --why.", resolve, key)
		}
		return fmt.Sprintf("nothing by itself: it may have been charged, and a person must find out. Look for the key %s in the Money API's own book (campaign explain --ask asks it), then: "+
			"%s --paid TRANSACTION_KEY | --unpaid, with --why.", x.Key, resolve)
	}
	if x.PromotionState == ledger.PromotionPaused && !x.LeaseUntil.After(x.Now) {
		return fmt.Sprintf("it waits until a person resumes the promotion (millrace campaign resume %s %d); then %s.", x.Type, x.Promotion, call(x))
	}
	next := way(x, c) + " " + upper(call(x)) + "."
	if x.State == ledger.Ambiguous && x.Then == ledger.Ask {
		next += fmt.Sprintf(" If only a proxy answers, a person who knows what became of it ends that: millrace unknown resolve %s %d %d --force.", x.Type, x.Promotion, x.Target)
	}
	return next
}

// way tells how the payout comes to its next worker.
func way(x ledger.Explanation, c *Config) string {
	switch {
	case x.LeaseUntil.After(x.Now):
		return fmt.Sprintf("%s is calling the Money API since %s; its answer settles it. If %s is dead, its lease ends %s and the feeder hands the payout on %s later.",
			x.AttemptBy, stamp(x.AttemptStartedAt), x.AttemptBy, when(x.LeaseUntil, x.Now), c.Feeder.Grace)
	case x.State == ledger.Sending:
		return fmt.Sprintf("%s took it and has not been heard of; its lease ended %s. The feeder hands the payout on %s.",
			x.AttemptBy, when(x.LeaseUntil, x.Now), due(x.HintDue.Add(c.Feeder.Grace), x.Now))
	case x.Hint == ledger.HintNone:
		return fmt.Sprintf("the feeder adds it to the promotion's stream as soon as there is room: it looks every %s.", c.Feeder.Interval)
	case x.Hint == ledger.HintStream:
		return fmt.Sprintf("it is in the promotion's stream since %s, and the next free slot takes it. If the stream was lost, the feeder notices and adds it again.", stamp(x.HintDue))
	default:
		return fmt.Sprintf("its retry record is due %s; if that is lost, the feeder hands the payout on %s.", when(x.HintDue, x.Now), due(x.HintDue.Add(c.Feeder.Grace), x.Now))
	}
}

// call tells what the next worker does.
func call(x ledger.Explanation) string {
	switch x.Then {
	case ledger.Send:
		again := ""
		if x.MaybeCharged || x.State == ledger.Sending {
			again = " again; it may have been charged, and the key makes that harmless"
		}
		return fmt.Sprintf("the request is sent with the key %s%s", x.Key, again)
	case ledger.Ask:
		if !x.MaybeCharged && x.State != ledger.Sending {
			return fmt.Sprintf("the key %s is looked up, because it was first used longer than idempotency_ttl ago; if there is no charge, the request is sent", x.Key)
		}
		return fmt.Sprintf("the key %s is looked up; nothing is sent before the Money API has answered", x.Key)
	case ledger.Ack:
		return "it is settled without another call: the promotion is cancelled, or all attempts are used up"
	default:
		return "it is looked at again"
	}
}

func when(t, now time.Time) string {
	if d := t.Sub(now).Round(time.Second); d > 0 {
		return fmt.Sprintf("in %s (%s)", d, stamp(t))
	} else if d < 0 {
		return fmt.Sprintf("%s ago (%s)", -d, stamp(t))
	}
	return "now"
}

// due is when, for what happens at the next look once its time has come.
func due(t, now time.Time) string {
	if !t.After(now) {
		return "at its next look"
	}
	return when(t, now)
}

func upper(s string) string {
	if s == "" || s[0] < 'a' || s[0] > 'z' {
		return s
	}
	return string(s[0]-'a'+'A') + s[1:]
}
