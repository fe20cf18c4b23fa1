package sqldb

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Renew returns the hook BeforeConnect of a pool (pgxpool, or stdlib.OptionBeforeConnect). It gives each
// new connection the user, the password and the certificates that the DSN and the files that it names
// have at that moment, so that they are rotated without a restart. Open connections keep theirs until
// they end, at the latest after ConnLifetime.
//
// A DSN that names another server or database is not taken, because one process must not write to two
// ledgers: the last good one stays in use, and a warning asks for a restart. While a file that it names
// can't be read, or has no password any more, the last content stays in use too. A nil log discards.
func Renew(dsn setting.Secret, log *slog.Logger) func(context.Context, *pgx.ConnConfig) error {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	throttle := logs.NewThrottle(time.Minute)
	var last atomic.Pointer[pgx.ConnConfig] // that could be read
	live := dsn.Live("dsn of postgres", log, func(value string) error {
		return samePlace(dsn.Reveal(), value)
	})
	return func(ctx context.Context, c *pgx.ConnConfig) error {
		now, err := pgx.ParseConfig(live.Value(ctx))
		if err != nil { // a certificate, or a file of passwords, that is being replaced
			throttle.Warn(log, "files of the dsn can't be read again, so their last content stays in use", logs.Err(err))
			if now = last.Load(); now == nil {
				return nil // those of the start
			}
		} else if known := last.Load(); known != nil && known.Password != "" && now.Password == "" {
			throttle.Warn(log, "the dsn and its file of passwords have no password any more, so the last one stays in use", slog.String("user", now.User))
			now = known
		}
		last.Store(now)
		now = now.Copy()
		c.User, c.Password, c.TLSConfig, c.Fallbacks = now.User, now.Password, now.TLSConfig, now.Fallbacks
		return nil
	}
}

// samePlace returns why the connections of a new DSN must not replace those of the old one.
func samePlace(old, value string) error {
	before, err := pgx.ParseConfig(old)
	if err != nil {
		return err // pgx omits the password
	}
	now, err := pgx.ParseConfig(value)
	if err != nil { // its text has the password of a DSN that is cut off
		return errors.New("the driver can't read it, or a file that it names")
	}
	if before.Database != now.Database || !slices.Equal(placesOf(before), placesOf(now)) {
		return errors.New("it names another server or database than at the start, which needs a restart")
	}
	return checkEncryption(value)
}

type address struct {
	host string
	port uint16
}

// placesOf returns the servers that the driver tries, once each: TLS may add a second attempt.
func placesOf(c *pgx.ConnConfig) []address {
	all := []address{{c.Host, c.Port}}
	for _, f := range c.Fallbacks {
		all = append(all, address{f.Host, f.Port})
	}
	return slices.Compact(all)
}
