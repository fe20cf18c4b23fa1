package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/millrace-io/millrace/handlers/waitingroom/promoted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/failpoint"
	"github.com/millrace-io/millrace/plugins/redis"
)

// route sends promoted users of an event to the instances that have their connections now. A user
// without a place is left out. The entries only wake the brokers, so one that can not be written is
// no error: its broker finds the promotion by the rank table.
func (d *Dispatcher) route(ctx context.Context, event string, list []promoted.User) error {
	users := make([]string, len(list))
	for i, u := range list {
		users[i] = u.ID
	}
	holders, err := d.o.Rooms.Holder(ctx, event, users)
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
			if err := d.o.Rooms.Route(call, instance, event, users...); err != nil {
				d.warn(ctx, "promoted users not sent to their broker, which finds them by the rank table", err,
					slog.String("event", event), slog.String(pipeline.LogInstance, instance))
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
	instances, err := d.o.Rooms.Instances(call)
	if err == nil && len(instances) > 0 {
		var alive map[string]bool
		alive, err = redis.Alive(call, d.o.Redis.Client(), instances...)
		for instance, lives := range alive {
			if !lives {
				err = errors.Join(err, d.o.Rooms.Dismiss(call, instance))
				d.log.InfoContext(ctx, "dispatch stream of a dead instance deleted", slog.String(pipeline.LogInstance, instance))
			}
		}
	}
	if err != nil {
		d.warn(ctx, "dispatch streams of dead instances not deleted, trying again", err)
	}
}
