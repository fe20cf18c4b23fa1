package waitingroom

import (
	"errors"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/broker"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/dispatcher"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/eventservice"
	"github.com/millrace-io/millrace/handlers/waitingroom/pages"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/web"
)

// The roles of a process.
const (
	roleBroker     = "broker"     // has the connections of the users, and answers the shop
	roleDispatcher = "dispatcher" // promotes users, and routes their notifications
)

// Values of config.Absent and config.UnknownEvents.
const (
	absentKeep    = "keep"
	absentRelease = "release"

	unknownConfirm = "confirm"
	unknownRefuse  = "refuse"
)

// config is the section plugins.waitingroom.
type config struct {
	// Roles are those of this process: broker, dispatcher, or both.
	Roles []string `yaml:"roles"`

	Broker     broker.Config     `yaml:",inline"`
	Dispatcher dispatcher.Config `yaml:",inline"`

	// PromoteBatch is the maximum number of promotions per call of the script.
	PromoteBatch int `yaml:"promote_batch"`
	// TokenTTL is the time of an admitted user, from the first notification.
	TokenTTL time.Duration `yaml:"token_ttl"`
	// MaxTurn is the most time of an admitted user whose turn the shop extends, from the first
	// notification. Up to TokenTTL, no turn is extended.
	MaxTurn time.Duration `yaml:"max_turn"`
	// ReadyTTL is the time in which a promoted user must be notified.
	ReadyTTL time.Duration `yaml:"ready_ttl"`
	// Grace is how long the place of a waiting user without a connection is kept. One SeenInterval
	// is added.
	Grace time.Duration `yaml:"grace"`
	// SeenInterval is the time between two signs of life of a user.
	SeenInterval time.Duration `yaml:"seen_interval"`
	// Absent says what happens to a promoted user without a connection: keep waits for the end of
	// the lease, release frees the slot unless a shop has verified the lease.
	Absent string `yaml:"absent"`
	// CloseSoldOut closes a room when a sale has taken its last seat: its waiting users have no place
	// then. A capacity that is lowered to the seats sold closes no room.
	CloseSoldOut bool `yaml:"close_sold_out"`
	// UnknownEvents says what happens to an event without a room. The value "refuse" answers 404,
	// and the default queries the Event Service.
	UnknownEvents string `yaml:"unknown_events"`
	// PurchasesPerUser is how many seats of an event a user may buy. Afterwards the user can not enter
	// its room again. 0 is no limit.
	PurchasesPerUser int `yaml:"purchases_per_user"`
	// MaxEvents is the number of rooms from which on users open no further one. Operators still do.
	MaxEvents    int                 `yaml:"max_events"`
	EventService eventservice.Config `yaml:"event_service"`
	// EntryURL is where the page sends an admitted user; {token} is replaced.
	EntryURL string `yaml:"entry_url"`
	// Page is what the pages of users look like.
	Page pages.Config `yaml:"page"`
	// ClearAfter is the time from the end of a room to the removal of its keys.
	ClearAfter time.Duration `yaml:"clear_after"`
	// Replicas must have stored a promotion, claim, verification, result or departure before its
	// answer.
	Replicas int `yaml:"replicas"`
	// ReplicaWait bounds the wait for them.
	ReplicaWait time.Duration `yaml:"replica_wait"`
	// ShopTokens are the credentials of ticket shops, by the name of the shop, which find of an operator,
	// the metrics and the log have. A second name lets a shop change its token while both are valid.
	ShopTokens map[string]setting.Secret `yaml:"shop_tokens"`
	// AdminTokens are the credentials of the operations API, by the name of the operator, which the audit
	// has. Empty: there is no API.
	AdminTokens map[string]setting.Secret `yaml:"admin_tokens"`
	// Redis is the server of the rooms. Absent: that of plugins.redis.
	Redis *redis.ClientConfig `yaml:"redis"`
}

// defaultConfig returns the settings of the README.
func defaultConfig() config {
	return config{
		Roles: []string{roleBroker, roleDispatcher}, Broker: broker.DefaultConfig(), Dispatcher: dispatcher.DefaultConfig(),
		PromoteBatch: 200, TokenTTL: 5 * time.Minute, MaxTurn: 15 * time.Minute, ReadyTTL: 2 * time.Minute, Grace: 2 * time.Minute, SeenInterval: 30 * time.Second,
		Absent: absentKeep, UnknownEvents: unknownConfirm, MaxEvents: 1000, EventService: eventservice.DefaultConfig(),
		ClearAfter: 24 * time.Hour, ReplicaWait: 100 * time.Millisecond,
	}
}

// EnabledByDefault returns false: most processes have no waiting room.
func (*config) EnabledByDefault() bool { return false }

func (c *config) has(role string) bool { return slices.Contains(c.Roles, role) }

// rooms returns the options of the rooms.
func (c *config) rooms() room.Options {
	return room.Options{
		PromoteInterval: c.Dispatcher.PromoteInterval, PromoteBatch: c.PromoteBatch, TokenTTL: c.TokenTTL, MaxTurn: c.MaxTurn, ReadyTTL: c.ReadyTTL,
		Grace: c.Grace, SeenInterval: c.SeenInterval, ClearAfter: c.ClearAfter, Release: c.Absent == absentRelease, CloseSoldOut: c.CloseSoldOut, MaxEvents: c.MaxEvents,
		PurchasesPerUser: c.PurchasesPerUser,
		Replicas:         c.Replicas, ReplicaWait: c.ReplicaWait,
	}
}

const (
	maxPromoteBatch = 500 // members that a script touches
	maxTTL          = time.Hour
)

// Validate reports all errors at once.
func (c *config) Validate() error {
	var p setting.Problems
	p.Roles(c.Roles, roleBroker, roleDispatcher)
	p.Check(c.PromoteBatch > 0 && c.PromoteBatch <= maxPromoteBatch, "promote_batch", "must be from 1 to %d, got %d", maxPromoteBatch, c.PromoteBatch)
	for key, d := range map[string]time.Duration{"token_ttl": c.TokenTTL, "ready_ttl": c.ReadyTTL, "grace": c.Grace, "seen_interval": c.SeenInterval} {
		p.Check(d >= time.Second && d <= maxTTL, key, "must be from 1s to %s, got %s", maxTTL, d)
	}
	p.Check(c.MaxTurn >= 0 && c.MaxTurn <= maxTTL, "max_turn", "must be from 0s to %s, got %s", maxTTL, c.MaxTurn)
	p.Check(c.SeenInterval <= c.Grace, "seen_interval", "must be at most grace (%s), got %s", c.Grace, c.SeenInterval)
	p.Check(c.Absent == absentKeep || c.Absent == absentRelease, "absent", "must be keep or release, got %q", c.Absent)
	p.Check(c.UnknownEvents == unknownConfirm || c.UnknownEvents == unknownRefuse, "unknown_events", "must be confirm or refuse, got %q", c.UnknownEvents)
	p.Check(c.PurchasesPerUser >= 0, "purchases_per_user", "must be >= 0, got %d", c.PurchasesPerUser)
	p.Check(c.MaxEvents > 0, "max_events", "must be > 0, got %d", c.MaxEvents)
	p.Under("event_service", c.EventService.Validate())
	if c.EntryURL != "" {
		u, err := url.Parse(strings.ReplaceAll(c.EntryURL, "{token}", "token"))
		p.Check(err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && strings.Contains(c.EntryURL, "{token}"),
			"entry_url", "must be an address with {token}, such as https://shop.example/enter?entry={token}")
	}
	p.Positive("clear_after", c.ClearAfter)
	p.Check(c.Replicas >= 0, "replicas", "must be >= 0, got %d", c.Replicas)
	p.Check(c.ReplicaWait > 0 && c.ReplicaWait <= time.Second, "replica_wait", "must be > 0 and at most 1s, got %s", c.ReplicaWait)
	checkTokens(&p, "shop_tokens", "a shop", c.ShopTokens)
	checkTokens(&p, "admin_tokens", "an operator", c.AdminTokens)
	p.Under("page", c.Page.Validate())
	if c.Redis != nil {
		p.Under("redis", c.Redis.Validate())
	}
	return errors.Join(p.Err(), c.Broker.Validate(), c.Dispatcher.Validate())
}

// tokenName is what an audit can show, and what the name of a person looks like in the console.
var tokenName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

// checkTokens checks tokens by the name of whom each belongs to. Two names with one token could not be told apart.
func checkTokens(p *setting.Problems, section, of string, tokens map[string]setting.Secret) {
	names := slices.Sorted(maps.Keys(tokens))
	for i, name := range names {
		key := section + "." + name
		p.Check(tokenName.MatchString(name), key, "the name of %s must be 1 to 64 characters of A-Za-z0-9._@-, because it is recorded", of)
		err := web.CheckToken(tokens[name].Reveal())
		p.Check(err == nil, key, "%v", err)
		for _, other := range names[:i] {
			p.Check(tokens[name].Reveal() != tokens[other].Reveal(), key, "must not be the token of %s, because the two could not be told apart", other)
		}
	}
}

// ValidateIn checks that users can sign in, that events can be confirmed, and that the logos can be read (app.Placed).
func (p *Plugin) ValidateIn(app.Where) error {
	var wrong setting.Problems
	if !p.config.has(roleBroker) {
		return nil
	}
	wrong.Check(p.config.UnknownEvents != unknownConfirm || p.config.EventService.URL != "", "event_service.url", "must be set with unknown_events: confirm")
	auth := p.web.Config().Auth
	wrong.Check(auth.Header != "" || auth.HasKeys(), "roles",
		"a broker needs signed-in users: set plugins.web.auth. There are no anonymous visitors")
	_, err := pages.Open(p.config.Page)
	wrong.Check(err == nil, "page", "%v", err)
	return wrong.Err()
}
