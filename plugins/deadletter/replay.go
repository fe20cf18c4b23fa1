package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
	"github.com/millrace-io/millrace/plugins/redispoll"
)

// Replayer replays the letters that a plugin's ledger has: those with a Subject.
type Replayer interface {
	// Register adds the services that Look and Replay need, to the process of a command: no routes, nothing that works.
	Register(r *pipeline.Registry) error
	// Look tells how what the letter is about stands, and changes nothing. An error means that the ledger can't be asked.
	Look(ctx context.Context, l letters.Letter) (Standing, error)
	// Replay makes the ledger take up what the letter is about. It has no double effect: called again with the same
	// letter and generation it answers Already. An error means that it isn't known what has happened; the
	// next replay calls it again. ctx ends when somebody else may replay the letter.
	Replay(ctx context.Context, l letters.Letter, by letters.By) (Outcome, error)
}

// Outcome is what became of a replay.
type Outcome struct {
	Result string `json:"result"`           // letters.OutcomeReplayed, OutcomeAlready or OutcomeRefused
	Reason string `json:"reason,omitempty"` // why it was refused, or had no effect
}

// Refuse returns the outcome of a letter that must not be replayed.
func Refuse(format string, args ...any) Outcome {
	return Outcome{letters.OutcomeRefused, fmt.Sprintf(format, args...)}
}

// ReplayWith sets who replays the letters of a plugin's ledger. It is called when the binary is put together.
func (p *Plugin) ReplayWith(plugin string, r Replayer) { p.replayers[plugin] = r }

// replay does what a replay of l is: its ledger's, or publishing it again.
func (p *Plugin) replay(ctx context.Context, l letters.Letter, by letters.By) (Outcome, error) {
	if l.Subject == "" {
		return p.resend(ctx, l)
	}
	r := p.replayers[l.Plugin]
	switch {
	case r == nil:
		return nobody(l), nil
	case p.isDisabled(l.Plugin):
		return Refuse("%s", disabledReason(l.Plugin)), nil
	}
	return r.Replay(ctx, l, by)
}

// nobody is the outcome of a letter whose ledger this binary doesn't have.
func nobody(l letters.Letter) Outcome { return Refuse("nobody here replays letters of %s", l.Plugin) }

// isDisabled reports whether the settings of the command switch a plugin off.
func (p *Plugin) isDisabled(plugin string) bool { return slices.Contains(p.disabled, plugin) }

func disabledReason(plugin string) string {
	return fmt.Sprintf("plugin %s is disabled in these settings", plugin)
}

// resend publishes a letter to where it came from, under the id it had, with a header that names letter and
// generation: a replay that is finished after it died may publish it twice, and looks the same both times.
func (p *Plugin) resend(ctx context.Context, l letters.Letter) (Outcome, error) {
	to, out := p.way(l)
	if to == nil {
		return out, nil
	}
	id := l.UUID
	if id == "" {
		id = l.ID
	}
	m := message.NewMessage(id, l.Payload)
	maps.Copy(m.Metadata, l.Headers)
	for _, name := range []string{pipeline.MetaDue, pipeline.MetaAttempt, pipeline.MetaFirstFailedAt, pipeline.MetaRetryOf} {
		delete(m.Metadata, name) // it begins anew
	}
	if l.Key != "" {
		m.Metadata.Set(pipeline.MetaKey, l.Key)
	}
	m.Metadata.Set(letters.MetaReplay, l.ReplayHeader())
	switch err := to.Publish(ctx, m); {
	case pipeline.IsPermanent(err):
		return Refuse("%s", err), nil
	case err != nil:
		return Outcome{}, err
	}
	return out, nil
}

// way returns the sink into which a replay of l is published, and what then becomes of it; nil when it is refused.
func (p *Plugin) way(l letters.Letter) (pipeline.Sink, Outcome) {
	to, err := p.origin(l.Source)
	if err != nil {
		return nil, Refuse("%s", err)
	}
	if class := l.Headers[redispoll.MetaMalformed]; class != "" {
		return nil, Refuse("the entry had no message (%s)", class)
	}
	return to, Outcome{Result: letters.OutcomeReplayed}
}

// origin returns the sink into which a source's messages are published.
func (p *Plugin) origin(s letters.Source) (pipeline.Sink, error) {
	var from Topics // those of the source
	switch {
	case s.Kind == letters.KindKafka && p.topics != nil:
		from = p.topics
	case s.Kind == letters.KindStream && p.streams != nil:
		from = p.streams
	case s.Kind == "":
		return nil, fmt.Errorf("it can't be known where it came from: %q", s.Name)
	default:
		return nil, fmt.Errorf("this binary has no %s", s.Kind)
	}
	if plugin, ok := from.(pipeline.Plugin); ok && p.isDisabled(plugin.Name()) {
		return nil, errors.New(disabledReason(plugin.Name()))
	}
	return from.Sink(s.Name), nil
}

// tools are the services that replays of some kinds of letters need.
type tools struct {
	plugin *Plugin
	kinds  []letters.Kind
}

// plugins returns those that are needed and not disabled, downstream first.
func (t tools) plugins() []pipeline.Plugin {
	var list []pipeline.Plugin
	for _, need := range []struct {
		kind string
		from any
	}{{letters.KindStream, t.plugin.streams}, {letters.KindKafka, t.plugin.topics}} {
		for _, k := range t.kinds {
			if plugin, ok := need.from.(pipeline.Plugin); ok && !k.Ledger && k.Source == need.kind && !t.plugin.isDisabled(plugin.Name()) {
				list = append(list, plugin)
				break
			}
		}
	}
	return append(list, t)
}

// Name implements pipeline.Plugin.
func (tools) Name() string { return "replay" }

// Register adds what the replayers of enabled plugins need.
func (t tools) Register(r *pipeline.Registry) error {
	seen := map[string]bool{}
	var errs []error
	for _, k := range t.kinds {
		if replayer := t.plugin.replayers[k.Plugin]; k.Ledger && replayer != nil && !seen[k.Plugin] && !t.plugin.isDisabled(k.Plugin) {
			seen[k.Plugin] = true
			errs = append(errs, replayer.Register(r))
		}
	}
	return errors.Join(errs...)
}

// open starts the tools around do.
func (t tools) open(ctx context.Context, env pipeline.Env, within time.Duration, do func(context.Context) error) (err error) {
	stop, err := t.start(ctx, env, within)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return do(ctx)
}

// start starts the tools, under a name that no running instance has, and returns what stops them.
func (t tools) start(ctx context.Context, env pipeline.Env, within time.Duration) (stop func() error, err error) {
	env.Instance += "-replay-" + watermill.NewULID()
	reg, err := pipeline.NewRegistry(env, t.plugins()...)
	if err != nil {
		return nil, err
	}
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	start, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := rt.StartServices(start); err != nil {
		return nil, err
	}
	return func() error { return rt.Stop(context.WithoutCancel(ctx)) }, nil
}
