// Package outbox publishes rows that a transaction has stored for it, at least once each. The ledgers have the rows, and
// this package decides which of them are published after an error.
package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// hopeless is the number of rows that fail one by one before the others are not tried.
const hopeless = 3

// Publish calls publish with rows and returns which of them are published. When publish fails without naming the rows
// (pipeline.PartialError) they are tried one by one, so that one bad row delays no other, unless the first ones all fail:
// then the rows are not the reason, and the rest has failed, too. A row that has failed may be published all the same.
func Publish[R any](ctx context.Context, rows []R, publish func(context.Context, []R) error) (published, failed []R, err error) {
	err = publish(ctx, rows)
	var partial *pipeline.PartialError
	switch {
	case err == nil:
		return rows, nil, nil
	case errors.As(err, &partial):
		for i, row := range rows {
			if partial.Failed[i] == nil {
				published = append(published, row)
			} else {
				failed = append(failed, row)
			}
		}
		return published, failed, err
	case len(rows) == 1:
		return nil, rows, err
	}
	var errs []error // the first ones, for a log
	for i := range rows {
		err := ctx.Err()
		if err == nil {
			err = publish(ctx, rows[i:i+1])
		}
		if err == nil {
			published = append(published, rows[i])
			continue
		}
		if failed = append(failed, rows[i]); len(failed) <= hopeless {
			errs = append(errs, err)
		}
		if len(failed) == hopeless && i+1 == hopeless {
			return nil, rows, errs[0]
		}
	}
	return published, failed, errors.Join(errs...)
}

// Delay returns how long to wait before a row is tried again whose tries have failed, the first one included. It grows, so
// that rows which can never be published leave the time to others, and is short enough for what only met an outage.
func Delay(tries int) time.Duration {
	return min(time.Second<<min(tries, 6), time.Minute)
}
