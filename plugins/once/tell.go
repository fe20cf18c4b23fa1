package once

import (
	"context"
	"log/slog"

	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// tell logs that calls of the kind fail, from the first one on, and that they are answered again: each at most once
// a minute. An effect that the far side refuses has an answer, and so has one for which it asks to wait.
func (w *worker) tell(ctx context.Context, k ledger.Key, a Answer, next string) {
	switch {
	case aboutTheEffect(a):
		if times, due := w.outage.Works(); due {
			w.log.InfoContext(ctx, "calls for effects are answered again", slog.Int("times", times))
		}
	case a.Class == Throttled && !a.General:
	default:
		if times, due := w.outage.Failed(); due {
			w.log.WarnContext(ctx, "a call for an effect failed", slog.String("effect", textOf(k)), slog.String("class", classOf(a)),
				slog.String("answer", textOfAnswer(a)), slog.String("next", next), slog.Int("times", times))
		}
	}
}

// nextOfCall says what follows a call for its effect.
func nextOfCall(s ledger.Settled, stored bool) string {
	switch {
	case !stored:
		return "its answer was not stored, so it is perhaps done when its lease ends"
	case s.Stale:
		return "nothing, because a later call has the effect"
	case s.State == rules.Ambiguous:
		return "it is perhaps done, and is looked up or sent again " + in(s.DueIn)
	case s.State == rules.Unknown:
		return "it is perhaps done, and nothing more is tried (once resolve)"
	case s.State == rules.Failed:
		return "it has failed, and nothing more is tried (once replay)"
	case s.State.Settled():
		return "nothing"
	}
	return "it is called for again " + in(s.DueIn)
}
