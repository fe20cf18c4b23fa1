package redis

import (
	"context"
	_ "embed" // the scripts
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline/logs"
)

var (
	//go:embed lua/level.lua
	levelSource string
	//go:embed lua/levels.lua
	levelsSource string
)

// The hash of the log levels that operators have ordered, and the stream of their changes. They share a slot.
const (
	levelsKey      = "millrace:{levels}:orders"
	levelsAuditKey = "millrace:{levels}:audit"
)

const (
	levelsMost      = 1_000          // instances with an order of their own
	levelsAuditMost = 10_000         // about, in the audit
	levelLongest    = 24 * time.Hour // of an order
)

// levelOfSettings is the order that ends others: the level of the settings applies again.
const levelOfSettings = "settings"

// errLevelsFull is returned for the level of one more instance.
var errLevelsFull = fmt.Errorf("redis: %d instances have a log level of their own already, which is the limit: give one for all instances", levelsMost)

// levelOrder is a log level that an operator has ordered, as level.lua stores it. The zero value is none.
type levelOrder struct {
	at    int64  // in µs, by the clock of the server; a later order has a higher one
	until int64  // in µs, by the same clock
	level string // of slog, or levelOfSettings
	by    orderedBy
	ends  time.Time // until by the clock of this process
}

// parseLevel reads a stored order. One that can't be read is none, because it must not last.
func parseLevel(text string) levelOrder {
	parts := strings.SplitN(text, " ", 4)
	if len(parts) != 4 {
		return levelOrder{}
	}
	o, level := levelOrder{level: parts[2]}, slog.LevelInfo
	var errs [4]error
	o.at, errs[0] = strconv.ParseInt(parts[0], 10, 64)
	o.until, errs[1] = strconv.ParseInt(parts[1], 10, 64)
	if o.level != levelOfSettings {
		errs[2] = level.UnmarshalText([]byte(o.level))
	}
	errs[3] = json.Unmarshal([]byte(parts[3]), &o.by)
	if errors.Join(errs[:]...) != nil {
		return levelOrder{}
	}
	return o
}

// storeLevel orders a level for some time, for one instance or for all. changed is false when there was nothing to end,
// and nothing is recorded then.
func storeLevel(ctx context.Context, c goredis.Scripter, instance, level string, length time.Duration, by orderedBy) (o levelOrder, changed bool, err error) {
	encoded, err := json.Marshal(by)
	if err != nil {
		return levelOrder{}, false, fmt.Errorf("redis: encode the order: %w", err)
	}
	reply, err := goredis.NewScript(levelSource).Run(ctx, c, []string{levelsKey, levelsAuditKey},
		instance, level, length.Microseconds(), encoded, by.Who, by.Why, levelsMost, levelsAuditMost, length.String()).Slice()
	if err != nil {
		return levelOrder{}, false, answered(fmt.Errorf("redis: order a log level: %w", err))
	}
	if len(reply) != 2 {
		return levelOrder{}, false, fmt.Errorf("redis: order a log level: unexpected reply %v", reply)
	}
	code, _ := reply[0].(int64)
	text, _ := reply[1].(string)
	if code < 0 {
		return levelOrder{}, false, errLevelsFull
	}
	return parseLevel(text), code > 0, nil
}

// storedLevels reads the orders for all instances and for one, with their ends by the clock of this process, so
// that the clocks may differ.
func storedLevels(ctx context.Context, c goredis.Scripter, instance string) (all, own levelOrder, err error) {
	reply, err := goredis.NewScript(levelsSource).Run(ctx, c, []string{levelsKey}, instance).StringSlice()
	if err != nil {
		return all, own, fmt.Errorf("redis: read the log levels that are ordered: %w", err)
	}
	if len(reply) != 3 {
		return all, own, fmt.Errorf("redis: read the log levels that are ordered: unexpected reply %v", reply)
	}
	server, err := strconv.ParseInt(reply[0], 10, 64)
	if err != nil {
		return all, own, fmt.Errorf("redis: read the log levels that are ordered: %w", err)
	}
	read := func(text string) levelOrder {
		o := parseLevel(text)
		left := time.Duration(o.until-server) * time.Microsecond
		o.ends = time.Now().Add(min(left, levelLongest)) // the clock of the server may have been ahead
		return o
	}
	return read(reply[1]), read(reply[2]), nil
}

// laterOf returns the order that holds now, of one for all instances and one for this instance: the later one that
// has not ended. An order for all ends earlier ones for one instance.
func laterOf(all, own levelOrder, now time.Time) levelOrder {
	for _, o := range []levelOrder{own, all} {
		if o.at > 0 && o.at >= all.at && now.Before(o.ends) {
			return o
		}
	}
	return levelOrder{}
}

// logLevels keep the level of this process as operators have ordered it. Their orders are read with each renewal of
// the presence, and end by the clock of the process, also while Redis does not answer. Safe for concurrent use.
type logLevels struct {
	mu       sync.Mutex
	level    *slog.LevelVar // nil: it can't be changed
	setting  slog.Level
	log      *slog.Logger
	all, own levelOrder
	holds    levelOrder
	end      *time.Timer
	failing  bool // the last read has failed
	stopped  bool
}

func newLogLevels(level *slog.LevelVar, log *slog.Logger) *logLevels {
	l := &logLevels{level: level, log: log}
	if level != nil {
		l.setting = level.Level()
	}
	return l
}

// follow reads the orders, and warns once about reads that fail. Then the last orders stay in force until they end.
func (l *logLevels) follow(ctx context.Context, c goredis.Scripter, instance string) {
	err := l.read(ctx, c, instance)
	l.mu.Lock()
	first := err != nil && !l.failing
	l.failing = err != nil
	l.mu.Unlock()
	if first {
		l.log.Warn("the orders about the log level can't be read, the last ones stay in force until they end", logs.Err(err))
	}
}

// read brings the level up to date. Of two orders the later one holds, so a failover that has lost one changes nothing.
func (l *logLevels) read(ctx context.Context, c goredis.Scripter, instance string) error {
	all, own, err := storedLevels(ctx, c, instance)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if all.at > l.all.at {
		l.all = all
	}
	if own.at > l.own.at {
		l.own = own
	}
	l.apply()
	return nil
}

// apply sets the level that holds now, and comes again when its time is over. The mutex is held.
func (l *logLevels) apply() {
	if l.level == nil || l.stopped {
		return
	}
	now := time.Now()
	last := l.holds
	l.holds = laterOf(l.all, l.own, now)
	if l.holds.at == last.at {
		return
	}
	if l.end != nil {
		l.end.Stop()
		l.end = nil
	}
	if l.holds.at > 0 {
		l.end = time.AfterFunc(l.holds.ends.Sub(now), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.apply()
		})
	}
	l.change(l.wanted())
}

// wanted is the level that the order in force, or else the settings ask for. The mutex is held.
func (l *logLevels) wanted() slog.Level {
	level := l.setting
	if l.holds.level != "" && l.holds.level != levelOfSettings {
		_ = level.UnmarshalText([]byte(l.holds.level)) // parseLevel has read it
	}
	return level
}

// change sets the level. The line about it is written at the more talkative one of both. The mutex is held.
func (l *logLevels) change(to slog.Level) {
	from := l.level.Level()
	if from == to {
		return
	}
	l.level.Set(min(from, to))
	if l.holds.at == 0 || l.holds.level == levelOfSettings {
		l.log.Info("log level of the settings applies again", slog.String("level", levelName(to)))
	} else {
		l.log.Info("log level changed by an operator", slog.String("level", levelName(to)), slog.Time("until", l.holds.ends.UTC()),
			slog.String("who", l.holds.by.Who), slog.String("why", l.holds.by.Why))
	}
	l.level.Set(to)
}

// stop sets the level of the settings, and no other one afterwards.
func (l *logLevels) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.end != nil {
		l.end.Stop()
	}
	if l.level != nil {
		l.level.Set(l.setting)
	}
}

// levelState is the log level of an instance, as it says so itself.
type levelState struct {
	Level   string     `json:"level"`           // in force
	Setting string     `json:"setting"`         // that of the settings
	Until   *time.Time `json:"until,omitempty"` // by the clock of Redis; absent: the settings apply
	Who     string     `json:"who,omitempty"`
	Why     string     `json:"why,omitempty"`
}

// state returns nil when the level is not known.
func (l *logLevels) state() *levelState {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.level == nil {
		return nil
	}
	s := &levelState{Level: levelName(l.level.Level()), Setting: levelName(l.setting)}
	if l.holds.at > 0 && l.holds.level != levelOfSettings {
		until := time.UnixMicro(l.holds.until).UTC().Truncate(time.Second)
		s.Until, s.Who, s.Why = &until, l.holds.by.Who, l.holds.by.Why
	}
	return s
}

// levelName is the name that settings have for a level.
func levelName(l slog.Level) string { return strings.ToLower(l.String()) }
