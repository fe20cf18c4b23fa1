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

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
)

// Replayer replays the dead letters of a plugin's ledger: those with a subject.
type Replayer interface {
	// Register adds the services that Preview and Replay need to the process of a command, and no
	// routes.
	Register(r *pipeline.Registry) error
	// Preview returns what a replay or a discard would do now, and changes nothing. An error says
	// that the ledger is unavailable.
	Preview(ctx context.Context, d store.DeadLetter) (store.Status, error)
	// Replay makes the ledger accept the work again. It is idempotent: a second call for the same
	// generation returns store.OutcomeAlready. After an error it is not known whether the replay
	// was done, and the next replay calls Replay again. ctx ends before another replay can hold the
	// dead letter.
	Replay(ctx context.Context, d store.DeadLetter, by store.By) (store.Outcome, error)
}

// ReplayedBy says how the dead letters of a plugin with a ledger are replayed. The plugin offers it in
// Register (pipeline.Registry.Offer).
type ReplayedBy struct {
	Plugin   string // as in its dead letters
	Replayer Replayer
}

// grouped is a Transport whose Publish creates what does not exist. A replay asks it first, because nobody would read the
// message there.
type grouped interface {
	// HasGroup reports whether a consumer group reads a topic or stream. One that does not exist has none.
	HasGroup(ctx context.Context, name string) (bool, error)
}

const (
	// previewStart bounds the start of the ledgers for previews. Without them a command continues.
	previewStart = 10 * time.Second
	// previewTimeout bounds one preview.
	previewTimeout = 5 * time.Second
	// maxPreviewFailures is the number of consecutive failures after which no ledger is called any
	// more.
	maxPreviewFailures = 3
)

// replays replays and previews dead letters for one use of an action. It is not safe for concurrent use.
type replays struct {
	plugin      *Plugin
	replayers   map[string]Replayer // by plugin
	env         pipeline.Env
	startWithin time.Duration
	disabled    []string                // plugins whose settings are not validated
	retryTopics map[string]store.Source // per route whose retry topic takes replays

	runtime *pipeline.Runtime // nil: nothing is started
	failed  int               // consecutive failures of previews
	err     error             // of the last preview that failed
}

func newReplays(p *Plugin, reg *pipeline.Registry) *replays {
	env := reg.Env()
	r := &replays{plugin: p, env: env, startWithin: env.StartTimeout, disabled: env.Disabled,
		retryTopics: map[string]store.Source{}, replayers: map[string]Replayer{}}
	for _, offer := range pipeline.Offers[ReplayedBy](reg) {
		r.replayers[offer.Plugin] = offer.Replayer
	}
	for _, route := range reg.Routes() {
		if retry := route.Policy.Retry; retry.TakesReplays && retry.To != nil {
			to := retry.To.Describe()
			r.retryTopics[route.Name] = store.Source{Kind: to.Kind, Name: to.Name}
		}
	}
	return r
}

// Start starts the transports and ledgers that replays of these targets need. They depend on the
// content of the store, so they are a runtime of their own, which starts after the store. In a process
// that runs routes they are started already.
func (r *replays) Start(ctx context.Context, targets []store.Target) error {
	return r.startRoutes(ctx, r.startWithin, targets)
}

// StartPreviews starts the ledgers that previews of these targets need. When they are unavailable,
// the previews say so.
func (r *replays) StartPreviews(ctx context.Context, targets []store.Target) error {
	ledgers := slices.DeleteFunc(slices.Clone(targets), func(t store.Target) bool { return !t.Ledger })
	err := r.startRoutes(ctx, previewStart, ledgers)
	if err != nil && ctx.Err() == nil {
		r.fail(err)
		r.failed = maxPreviewFailures
		return nil
	}
	return err
}

func (r *replays) startRoutes(ctx context.Context, within time.Duration, targets []store.Target) error {
	if r.plugin.serving.Load() {
		return nil
	}
	env := r.env
	env.Instance += "-replay-" + watermill.NewULID() // no running instance has this name
	reg, err := pipeline.NewRegistry(env, r.plugins(targets)...)
	if err != nil {
		return err
	}
	runtime := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	if within > 0 {
		bounded, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		ctx = bounded
	}
	if err := runtime.StartServices(ctx); err != nil {
		return err
	}
	r.runtime = runtime
	return nil
}

func (r *replays) Stop(ctx context.Context) error {
	if r.runtime == nil {
		return nil
	}
	return r.runtime.Stop(context.WithoutCancel(ctx))
}

// plugins returns the plugins that replays of these targets need and that are not disabled.
func (r *replays) plugins(targets []store.Target) []pipeline.Plugin {
	var list []pipeline.Plugin
	for kind, transport := range r.plugin.transports {
		uses := func(t store.Target) bool { return !t.Ledger && r.replayKind(t) == kind }
		if plugin, ok := transport.(pipeline.Plugin); ok && !r.isDisabled(plugin.Name()) && slices.ContainsFunc(targets, uses) {
			list = append(list, plugin)
		}
	}
	ledgers := ledgers{}
	for _, t := range targets {
		if replayer := r.replayers[t.Plugin]; t.Ledger && replayer != nil && !r.isDisabled(t.Plugin) {
			ledgers[t.Plugin] = replayer
		}
	}
	return append(list, ledgers)
}

// ledgers registers the services of replayers, by the plugin that has them.
type ledgers map[string]Replayer

func (ledgers) Name() string { return "replay" }

func (l ledgers) Register(r *pipeline.Registry) error {
	var errs []error
	for _, plugin := range slices.Sorted(maps.Keys(l)) {
		errs = append(errs, l[plugin].Register(r))
	}
	return errors.Join(errs...)
}

// isDisabled reports whether the settings of the command disable a plugin.
func (r *replays) isDisabled(plugin string) bool { return slices.Contains(r.disabled, plugin) }

func disabledReason(plugin string) string {
	return fmt.Sprintf("plugin %s is disabled in these settings", plugin)
}

func (r *replays) replayKind(t store.Target) string {
	if retry, ok := r.retryTopics[t.Handler]; ok {
		return retry.Kind
	}
	return t.SourceKind
}

// destination returns where a replay of a dead letter without a ledger is published. It is the
// retry topic of its route, if that takes replays. Otherwise it is the topic or stream of the
// origin. The error is why a replay is refused.
func (r *replays) destination(d store.DeadLetter) (pipeline.Sink, error) {
	if r.isDisabled(d.Plugin) { // the retry topic of its route is not known, and others read the origin
		return nil, errors.New(disabledReason(d.Plugin))
	}
	to, ok := r.retryTopics[d.Handler]
	if !ok {
		to = d.Source
	}
	if to.Kind == "" {
		return nil, fmt.Errorf("its origin is unknown: %q", to.Name)
	}
	transport, ok := r.plugin.transports[to.Kind]
	if !ok {
		return nil, fmt.Errorf("this binary has no %s", to.Kind)
	}
	if plugin, ok := transport.(pipeline.Plugin); ok && r.isDisabled(plugin.Name()) {
		return nil, errors.New(disabledReason(plugin.Name()))
	}
	if class := d.Headers[pipeline.MetaMalformed]; class != "" {
		return nil, fmt.Errorf("its transport could not decode it (%s)", class)
	}
	if length := d.Headers[pipeline.MetaDeadPayloadBytes]; length != "" {
		return nil, fmt.Errorf("only the first %d of %s bytes of its payload were kept: publish the complete message again (SHA-256 %s)",
			len(d.Payload), length, d.Headers[pipeline.MetaDeadPayloadSHA256])
	}
	return transport.Sink(to.Name), nil
}

func noReplayer(d store.DeadLetter) store.Outcome {
	return store.Refuse("this binary replays no dead letters of plugin %s", d.Plugin)
}

// Replay replays a dead letter through its ledger, or publishes the message again.
func (r *replays) Replay(ctx context.Context, d store.DeadLetter, by store.By) (store.Outcome, error) {
	replayer := r.replayers[d.Plugin]
	switch {
	case d.Subject == "":
		return r.publish(ctx, d)
	case r.isDisabled(d.Plugin):
		return store.Refuse("%s", disabledReason(d.Plugin)), nil
	case replayer == nil:
		return noReplayer(d), nil
	}
	return replayer.Replay(ctx, d, by)
}

// publish publishes the message of a dead letter under the id that it had. A header names dead
// letter and generation: a replay that crashed and is resumed may publish it twice, with the same
// id and header.
func (r *replays) publish(ctx context.Context, d store.DeadLetter) (store.Outcome, error) {
	to, err := r.destination(d)
	if err != nil {
		return store.Refuse("%s", err), nil
	}
	at := to.Describe()
	if transport, ok := r.plugin.transports[at.Kind].(grouped); ok {
		switch read, err := transport.HasGroup(ctx, at.Name); {
		case err != nil:
			return store.Outcome{}, err
		case !read:
			return store.Refuse("no consumer group reads %s on the server of this transport, so nobody would get the message", at), nil
		}
	}
	id := d.UUID
	if id == "" {
		id = d.ID
	}
	m := message.NewMessage(id, d.Payload)
	maps.Copy(m.Metadata, d.Headers)
	for _, name := range []string{pipeline.MetaDue, pipeline.MetaAttempt, pipeline.MetaFirstFailedAt, pipeline.MetaLastError, pipeline.MetaRetryOf} {
		delete(m.Metadata, name) // its attempts begin again
	}
	if d.Key != "" {
		m.Metadata.Set(pipeline.MetaKey, d.Key)
	}
	m.Metadata.Set(pipeline.MetaReplay, d.ReplayHeader())
	switch err := to.Publish(ctx, m); {
	case pipeline.IsPermanent(err):
		return store.Refuse("%s", err), nil
	case err != nil:
		return store.Outcome{}, err
	}
	return store.Outcome{Result: store.OutcomeReplayed}, nil
}

// Preview returns what a replay or a discard would do now. After several consecutive failures it
// returns the last one without a call.
func (r *replays) Preview(ctx context.Context, d store.DeadLetter) (store.Status, error) {
	replayer := r.replayers[d.Plugin]
	switch {
	case d.Subject == "":
		to, err := r.destination(d)
		if err != nil {
			return store.Status{Replay: store.Refuse("%s", err)}, nil
		}
		at := to.Describe()
		return store.Status{Replay: store.Outcome{Result: store.OutcomeReplayed}, To: at.String()}, nil
	case r.isDisabled(d.Plugin):
		reason := disabledReason(d.Plugin)
		return store.Status{Replay: store.Refuse("%s", reason), Unsettled: reason + ": use settings with this plugin, or --unsettled"}, nil
	case replayer == nil:
		return store.Status{Replay: noReplayer(d),
			Unsettled: fmt.Sprintf("this binary has no plugin %s to check it: use one that has, or --unsettled", d.Plugin)}, nil
	case r.failed >= maxPreviewFailures:
		return store.Status{}, r.err
	}
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	status, err := replayer.Preview(ctx, d)
	if err != nil {
		r.fail(err)
		return store.Status{}, r.err
	}
	r.failed = 0
	return status, nil
}

func (r *replays) fail(err error) {
	r.failed++
	r.err = fmt.Errorf("the ledger is unavailable: %w", err)
}
