package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/e2e/services/servers"
)

func (t *caseRun) redisFails(ctx context.Context, what string) error {
	if what == "refused-key" {
		return t.refusedKey(ctx)
	}
	if err := t.underLoad(ctx); err != nil {
		return err
	}
	more := func() error { return t.publish(ctx, t.c.Targets/2) } // what comes meanwhile
	direct := t.deployment.redis
	switch what {
	case "restart":
		t.redisLost = true // it keeps nothing
		return t.fleet.restart(ctx, servers.Redis)
	case "flushall":
		t.redisLost = true
		for range 3 {
			if err := direct.FlushAll(ctx).Err(); err != nil {
				return err
			}
			if err := t.publish(ctx, t.c.Targets/3); err != nil {
				return err
			}
		}
		return nil
	case "flushall-inflow":
		return t.wipedUnderInflow(ctx)
	case "client-kill":
		for range 5 {
			if err := direct.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
				return err
			}
			if err := t.publish(ctx, t.c.Targets/5); err != nil {
				return err
			}
			wait(ctx, 200*time.Millisecond)
		}
		return nil
	case "slow":
		t.redis.SetDelay(50 * time.Millisecond)
		if err := more(); err != nil {
			return err
		}
		return t.settledShare(ctx, 90)
	case "answers-cut":
		before := t.redis.Cuts()
		t.redis.CutAnswers(20)
		if err := more(); err != nil {
			return err
		}
		if err := until(ctx, 20*time.Second, "answers are cut off", func() error {
			if n := t.redis.Cuts() - before; n < 20 {
				return fmt.Errorf("only %d", n)
			}
			return nil
		}); err != nil {
			return err
		}
		t.redis.CutAnswers(0)
		return nil
	case "failover":
		return t.failover(ctx)
	case "oom-long":
		return t.fullForLong(ctx)
	case "oom":
		if err := direct.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
			return err
		}
		err := more()
		wait(ctx, 2*time.Second)
		return errors.Join(err, direct.ConfigSet(ctx, "maxmemory", "0").Err())
	}
	return errors.New("no such fault of Redis: " + what)
}

// failover puts a replica in the primary's place that lacks the last second of it. When all is paid
// the old primary, empty, takes over again.
func (t *caseRun) failover(ctx context.Context) error {
	t.redisLost = true
	spare, err := t.spare(ctx, servers.Redis, nil)
	if err != nil {
		return err
	}
	primary := t.deployment.redis
	replica := redis.NewClient(&redis.Options{Addr: spare.Addr(servers.Redis)})
	defer func() { _ = replica.Close() }()
	if err := primary.ConfigSet(ctx, "repl-diskless-sync-delay", "0").Err(); err != nil {
		return err
	}
	host, port, _ := strings.Cut(t.fleet.server(t.t, servers.Redis), ":")
	if err := replica.Do(ctx, "REPLICAOF", host, port).Err(); err != nil {
		return err
	}
	if err := t.publish(ctx, t.c.Targets); err != nil { // the first ones may be paid by now
		return err
	}
	if err := until(ctx, 20*time.Second, "the replica is in step", func() error {
		info, err := replica.InfoMap(ctx, "replication").Result()
		if err != nil {
			return err
		}
		if s := info["Replication"]["master_link_status"]; s != "up" {
			return errors.New("its link is " + s)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := replica.Do(ctx, "REPLICAOF", "NO", "ONE").Err(); err != nil {
		return err
	}
	err = t.publish(ctx, t.c.Targets/2)
	wait(ctx, time.Second) // which the replica does not see
	t.redis.Retarget(spare.Addr(servers.Redis))
	if err != nil {
		return err
	}
	if err := t.settledShare(ctx, 100); err != nil {
		return err
	}
	if err := primary.FlushAll(ctx).Err(); err != nil {
		return err
	}
	t.redis.Retarget(t.fleet.server(t.t, servers.Redis))
	return replica.FlushAll(ctx).Err()
}

// wipedUnderInflow empties Redis while more records arrive than are paid, so that the stream is
// never drained. The lost entries must be paid before the inflow ends.
func (t *caseRun) wipedUnderInflow(ctx context.Context) error {
	t.redisLost = true
	slow := usualMoney
	slow.Latency = 200 * time.Millisecond
	if err := t.business.SetFaults(slow); err != nil {
		return err
	}
	if err := t.publish(ctx, t.c.Targets/2); err != nil {
		return err
	}
	before := t.next
	if err := t.deployment.redis.FlushAll(ctx).Err(); err != nil {
		return err
	}
	return until(ctx, 40*time.Second, "the payouts of the lost stream are paid while records keep coming", func() error {
		rows, err := t.rows(ctx)
		if err != nil {
			return err
		}
		lost, newer := 0, 0
		for target := int64(1); target <= t.next; target++ {
			if rows[target].State.Settled() {
				continue
			}
			if target <= before {
				lost++
			} else {
				newer++
			}
		}
		if lost == 0 {
			return nil
		}
		if newer < 200 { // so that the stream is not drained
			if err := t.publish(ctx, 100); err != nil {
				return err
			}
		}
		return fmt.Errorf("%d of %d are not", lost, before)
	})
}

// switchedOver gives every session of the database a server that takes no writes, for a while.
// Sessions that began then never take any.
func (t *caseRun) switchedOver(ctx context.Context, meanwhile func() error) error {
	return t.sql(ctx, func(conn *pgx.Conn) error {
		for _, sql := range []string{
			"SET default_transaction_read_only = off",
			"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$",
		} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				return err
			}
		}
		err := errors.Join(terminateAll(ctx)(conn), meanwhile())
		wait(ctx, 3*time.Second)
		_, back := conn.Exec(context.WithoutCancel(ctx),
			"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database()); END $$")
		return errors.Join(err, back)
	})
}

func (t *caseRun) postgresFails(ctx context.Context, what string) error {
	if err := t.underLoad(ctx); err != nil {
		return err
	}
	more := func() error { return t.publish(ctx, t.c.Targets/2) }
	switch what {
	case "restart":
		err := more()
		return errors.Join(err, t.fleet.restart(ctx, servers.Postgres))
	case "terminate":
		for range 5 {
			if err := t.sql(ctx, terminateAll(ctx)); err != nil {
				return err
			}
			if err := t.publish(ctx, t.c.Targets/5); err != nil {
				return err
			}
			wait(ctx, 200*time.Millisecond)
		}
		return nil
	case "read-only":
		return t.switchedOver(ctx, more)
	case "locks":
		return t.sql(ctx, func(conn *pgx.Conn) error {
			tx, err := conn.Begin(ctx)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "LOCK TABLE "+t.work.table()+" IN ACCESS EXCLUSIVE MODE"); err != nil {
				return err
			}
			err = more()
			wait(ctx, 10*time.Second)
			return errors.Join(err, tx.Commit(ctx))
		})
	case "full-pool":
		var taken []*pgx.Conn
		defer func() {
			for _, c := range taken {
				_ = c.Close(context.WithoutCancel(ctx))
			}
		}()
		take := func() {
			for {
				c, err := pgx.Connect(ctx, t.dsn+"&application_name=fault")
				if err != nil {
					return // that was the last one
				}
				taken = append(taken, c)
			}
		}
		take()
		if len(taken) == 0 {
			return errors.New("not one connection could be had")
		}
		// Those of the instances are lost, and the places taken at once.
		if err := terminateAll(ctx)(taken[0]); err != nil {
			return err
		}
		take()
		err := more()
		wait(ctx, 3*time.Second)
		return err
	}
	return errors.New("no such fault of PostgreSQL: " + what)
}

// terminateAll ends all connections but its own.
func terminateAll(ctx context.Context) func(*pgx.Conn) error {
	return func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND application_name <> 'fault'`)
		return err
	}
}
