package room

import (
	"context"
	"encoding/json"
	"strconv"

	"github.com/millrace-io/millrace/plugins/redis"
)

const (
	instancesKey = "DISPATCH_INSTANCES"
	// dispatchMax is about the maximum number of entries in an instance's stream. A lost entry
	// costs no turn: the rank table says how far the promotion has come.
	dispatchMax = 10_000
)

// DispatchStream returns the stream of an instance with the users that it notifies.
func DispatchStream(instance string) string { return "DISPATCH:" + instance }

// Route adds promoted users to the stream of the instance that has their connections.
func (r *Store) Route(ctx context.Context, instance, event string, users ...string) error {
	calls := make([]*redis.Call, 0, len(users)+1)
	for _, user := range users {
		calls = append(calls, redis.Command("XADD", DispatchStream(instance), "MAXLEN", "~", dispatchMax, "*",
			"userId", user, "eventId", event, "instanceId", instance))
	}
	return r.server.Do(ctx, append(calls, redis.Command("SADD", instancesKey, instance))...)
}

// Instances returns the instances that have a stream, in no order.
func (r *Store) Instances(ctx context.Context) ([]string, error) {
	c := redis.Command("SMEMBERS", instancesKey)
	if err := r.server.Do(ctx, c); err != nil {
		return nil, err
	}
	return c.Texts()
}

// Dismiss removes the stream of a dead instance. An entry that is added in between puts the
// instance on the list again.
func (r *Store) Dismiss(ctx context.Context, instance string) error {
	stream := DispatchStream(instance)
	for _, c := range []*redis.Call{
		redis.Command("DEL", stream), redis.Command("SREM", instancesKey, instance),
		redis.Command("DEL", stream), redis.Command("DEL", "{"+stream+"}:meta"),
	} {
		if err := r.server.Do(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// Holder returns the instance that had the latest connection of each user, or "" for a user without
// a place.
func (r *Store) Holder(ctx context.Context, event string, users []string) ([]string, error) {
	if len(users) == 0 {
		return nil, nil
	}
	leases, places := []any{"HMGET", "ENTRY_RECORD:{" + event + "}"}, []any{"HMGET", "WAITING_QUEUE_INDEX_RECORD:{" + event + "}"}
	for _, user := range users {
		leases, places = append(leases, user), append(places, user)
	}
	calls := []*redis.Call{redis.Command(places...), redis.Command(leases...)}
	if err := r.server.Do(ctx, calls...); err != nil {
		return nil, err
	}
	holders := make([]string, len(users))
	for _, c := range calls { // a lease wins
		texts, err := c.Texts()
		if err != nil {
			return nil, err
		}
		for i, text := range texts {
			var record struct{ InstanceID string }
			if json.Unmarshal([]byte(text), &record) == nil && record.InstanceID != "" {
				holders[i] = record.InstanceID
			}
		}
	}
	return holders, nil
}

// Details are what is stored about a user, for an operator.
type Details struct {
	Place
	Instance string `json:"instanceId"` // of the latest connection
	Bought   int    `json:"bought"`     // purchases in this event
	// Shop is the name of the shop that has sent the last request about the lease. Empty: none has, or
	// there is no lease. That of a lease that has ended is in Memory.
	Shop string `json:"shop"`
	// Seen is the last sign of life of a waiting user, in ms of the room's time.
	Seen int64 `json:"seen"`
	// Memory says how the last place ended. It is null when nothing is remembered.
	Memory json.RawMessage `json:"memory"`
}

// Find describes a user for an operator.
func (r *Store) Find(ctx context.Context, event, user string) (Details, error) {
	p, err := r.Status(ctx, event, user)
	if err != nil {
		return Details{}, err
	}
	d := Details{Place: p}
	holders, err := r.Holder(ctx, event, []string{user})
	if err != nil {
		return d, err
	}
	d.Instance = holders[0]
	seen, departed := redis.Command("ZSCORE", "WAITING_SEEN:{"+event+"}", user), redis.Command("HGET", "WAITING_LEFT:{"+event+"}", user)
	bought, held := redis.Command("HGET", "ENTRY_BUYERS:{"+event+"}", user), redis.Command("HGET", "ENTRY_RECORD:{"+event+"}", user)
	if err := r.server.Do(ctx, seen, departed, bought, held); err != nil {
		return d, err
	}
	purchases, _ := bought.Text()
	d.Bought, _ = strconv.Atoi(purchases) // 0 for a user who has bought nothing
	var lease struct{ Shop string }
	if text, _ := held.Text(); json.Unmarshal([]byte(text), &lease) == nil {
		d.Shop = lease.Shop
	}
	if text, _ := departed.Text(); json.Valid([]byte(text)) {
		d.Memory = json.RawMessage(text)
	}
	score, _ := seen.Text()
	at, _ := strconv.ParseFloat(score, 64) // 0 for a user that does not wait
	d.Seen = int64(at)
	return d, nil
}
