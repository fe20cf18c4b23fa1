package campaign

import (
	"context"
	"errors"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Env is what is needed of the plugin. All fields are required.
type Env struct {
	DeadLetters DeadLetters
	// Plugin is the plugin's name in dead letters.
	Plugin string
	// DeadLetterID returns the id that a dead letter of the ledger has in the dead letter store.
	DeadLetterID func(ledger.OutboxMessage) string
	// Settings returns the settings. They are valid while services run.
	Settings  func() Settings
	Resources Resources
	// Paused says that the route which accepts payouts of a type is paused, or nothing (operate.PausedNote). It may be nil.
	Paused func(context.Context, payouts.Type) string
}

// Settings are the settings that are explained or compared with.
type Settings struct {
	CallTimeout       time.Duration // of the Money API
	Lease             time.Duration // of a payout
	IdempotencyTTL    time.Duration // of a key
	FeederInterval    time.Duration // between two rounds of the feeder
	FeederGrace       time.Duration // before the feeder enqueues an overdue payout
	AcceptUnannounced bool
}

// Resources are the connections of the plugin. All but Register are valid while services run.
type Resources interface {
	// Register adds the services that open what s names, for a command.
	Register(r *pipeline.Registry, s Services) error
	// Ledger returns nil before it is open.
	Ledger() *ledger.Ledger
	// API returns the client. It is nil if the simulated Money API runs inside the service.
	API() money.API
	// Redis returns why the Redis of the streams does not answer a command, or nil.
	Redis() error
	// Running returns the instances that pay, by name. The error is why that is not known.
	Running(ctx context.Context) (map[string]Running, error)
	// Streams returns the streams of a type, or nil for a type that this version does not have.
	Streams(t payouts.Type) *streams.Manager
}

// DeadLetters is the plugin deadletter. A subject is the key of a payout, or that of a promotion.
type DeadLetters interface {
	About(ctx context.Context, plugin, subject string) ([]store.DeadLetter, error)
	Settled(ctx context.Context, plugin, subject string, by store.By) (ids []string, err error)
	Waiting(ctx context.Context, plugin, subject string, limit int) (list []store.DeadLetter, n int64, stored bool, err error)
}

// Services are the services that a command starts. The zero value starts none.
type Services struct {
	Ledger   bool
	Streams  bool // the Redis of the streams, without readers; it may be away
	MoneyAPI Need
	Kafka    bool
}

// Need says whether a command needs the Money API.
type Need int

// The needs.
const (
	Unused   Need = iota
	Optional      // the command works without it
	Required
)

// ErrNotOpen is the answer before the services of the plugin have started.
var ErrNotOpen = errors.New("the ledger is not open: the plugin promotion has not started")

func (e Env) ledger() (*ledger.Ledger, error) {
	if l := e.Resources.Ledger(); l != nil {
		return l, nil
	}
	return nil, ErrNotOpen
}
