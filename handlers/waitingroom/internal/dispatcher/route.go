package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/wakeup"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis"
)

// route sends promoted users of an event to the instances that have their connections now. A user
// without a place is left out. The entries only wake the brokers, so one that can not be written is
// no error: its broker finds the promotion by the rank table.
func (d *Dispatcher) route(ctx context.Context, event string, list []wakeup.User) error {
	users := make([]string, len(list))
	for i, u := range list {
		users[i] = u.ID
	}
	holders, err := d.opts.Rooms.Holder(ctx, event, users)
	if err != nil {
		return fmt.Errorf("holders of the connections: %w", err)
	}
	routed := map[string][]string{}
	for i, instance := range holders {
		if instance == "" {
			continue
		}
		if instance != list[i].Instance {
			d.metrics.rerouted.Inc()
		}
		routed[instance] = append(routed[instance], users[i])
	}
	var writes sync.WaitGroup
	for instance, users := range routed {
		writes.Go(func() {
			call, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			if err := d.opts.Rooms.Route(call, instance, event, users...); err != nil {
				d.warn(ctx, "promoted users not sent to their broker, which finds them by the rank table", err,
					slog.String("event", event), slog.String(logs.Instance, instance))
			}
		})
	}
	writes.Wait()
	failpoint.Hit(failpoint.Routed)
	return ctx.Err()
}

// clean deletes the streams of instances that are gone. An instance that is alive loses nothing by
// it but time.
func (d *Dispatcher) clean(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	instances, err := d.opts.Rooms.Instances(call)
	if err == nil && len(instances) > 0 {
		var alive map[string]bool
		alive, err = redis.Alive(call, d.opts.Redis.Client(), instances...)
		if err == nil {
			err = d.dismiss(call, instances, alive)
		}
	}
	if err != nil {
		d.warn(ctx, "dispatch streams of dead instances not deleted, trying again", err)
	}
	d.measure(ctx, streamDispatch, instances, room.DispatchStream)
	d.measure(ctx, streamEntry, d.known(), room.EntryStream)
}

// dismiss deletes the streams of instances that are not alive. An instance that never had a
// presence may be about to get one: it stays for another round.
func (d *Dispatcher) dismiss(ctx context.Context, instances []string, alive map[string]bool) (err error) {
	unseen := map[string]bool{}
	for _, instance := range instances {
		lives, seen := alive[instance]
		switch {
		case lives:
		case !seen && !d.unseen[instance]:
			unseen[instance] = true
		default:
			if failed := d.opts.Rooms.Dismiss(ctx, instance); failed != nil {
				err = errors.Join(err, failed)
				continue
			}
			d.log.InfoContext(ctx, "dispatch stream of a dead instance deleted", slog.String(logs.Instance, instance))
		}
	}
	d.unseen = unseen
	return err
}

// The values of the label "stream".
const (
	streamEntry    = "ENTRY"
	streamDispatch = "DISPATCH"
)

// measure counts the entries of streams of one kind. Those that do not answer are left out. When
// none answers, the metric stays as it is.
func (d *Dispatcher) measure(ctx context.Context, kind string, names []string, stream func(string) string) {
	calls := make([]*redis.Call, len(names))
	for i, name := range names {
		calls[i] = redis.Command("XLEN", stream(name))
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_ = d.opts.Server.Do(ctx, calls...) // each call has its own error
	longest, answered := int64(0), len(calls) == 0
	for _, c := range calls {
		if n, err := c.Int(); err == nil {
			longest, answered = max(longest, n), true
		}
	}
	if !answered {
		return
	}
	d.metrics.entries.WithLabelValues(kind).Set(float64(longest))
}
