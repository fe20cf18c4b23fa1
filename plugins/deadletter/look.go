package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// Standing is how what a letter is about stands now.
type Standing struct {
	// State is in the ledger's words, such as "SUCCESS, b38e9ad7-296". Empty: no ledger has it.
	State string `json:"state,omitempty"`
	// Replay is what Replay would answer now. What becomes of the letter depends on its own state too.
	Replay Outcome `json:"replay"`
	// Unsettled says why the letter must not be discarded yet, and what a person does first. Empty: it may be discarded.
	Unsettled string `json:"unsettled,omitempty"`
	// Remains says what discarding the letter leaves as it is, such as a payout that nobody makes. Empty: nothing of note.
	Remains string `json:"remains,omitempty"`
}

// String tells it to a person.
func (s Standing) String() string {
	text := s.State
	add := func(format string, args ...any) {
		if text != "" {
			text += "; "
		}
		text += fmt.Sprintf(format, args...)
	}
	switch s.Replay.Result {
	case letters.OutcomeRefused:
		add("a replay would be refused: %s", s.Replay.Reason)
	case letters.OutcomeAlready:
		add("a replay would have no effect: %s", s.Replay.Reason)
	}
	if s.Unsettled != "" {
		add("it must not be discarded yet: %s", s.Unsettled)
	}
	return text
}

const (
	// lookStart bounds waiting for the ledgers that are looked into: without them a command goes on.
	lookStart = 10 * time.Second
	// lookTimeout bounds one look.
	lookTimeout = 5 * time.Second
)

// looker tells how what letters are about stands. It is not safe for concurrent use.
type looker struct {
	plugin *Plugin
	failed int   // looks in a row
	err    error // of the last one
}

// withLooker opens the ledgers that letters of these kinds are in, around do. When they can't be opened, the looker says so.
func (p *Plugin) withLooker(ctx context.Context, env pipeline.Env, kinds []letters.Kind, do func(context.Context, *looker) error) (err error) {
	k := &looker{plugin: p}
	ledgers := tools{plugin: p}
	for _, kind := range kinds {
		if kind.Ledger {
			ledgers.kinds = append(ledgers.kinds, kind)
		}
	}
	stop, err := ledgers.start(ctx, env, lookStart)
	switch {
	case err == nil:
		defer func() { err = errors.Join(err, stop()) }()
	case ctx.Err() != nil:
		return err
	default:
		k.fail(err)
		k.failed = tooMany
	}
	return do(ctx, k)
}

// look tells how what l is about stands. The error says that its ledger can't be asked; after too many of them in a row
// it isn't asked any more.
func (k *looker) look(ctx context.Context, l letters.Letter) (Standing, error) {
	r := k.plugin.replayers[l.Plugin]
	switch {
	case l.Subject == "":
		_, out := k.plugin.way(l)
		return Standing{Replay: out}, nil
	case r == nil:
		return Standing{Replay: nobody(l), Unsettled: fmt.Sprintf("this binary has no plugin %s to ask: use one that has, or --unsettled", l.Plugin)}, nil
	case k.plugin.isDisabled(l.Plugin):
		reason := disabledReason(l.Plugin)
		return Standing{Replay: Refuse("%s", reason), Unsettled: reason + ": use settings with this plugin, or --unsettled"}, nil
	case k.failed >= tooMany:
		return Standing{}, k.err
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	s, err := r.Look(ctx, l)
	if err != nil {
		k.fail(err)
		return Standing{}, k.err
	}
	k.failed = 0
	return s, nil
}

func (k *looker) fail(err error) {
	k.failed++
	k.err = fmt.Errorf("the ledger can't be asked: %w", err)
}
