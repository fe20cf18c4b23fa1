package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// examined is what plugins use of one server.
type examined struct {
	place string
	cfg   ClientConfig
	uses  []use
}

// use is keys on which the user must have the rights for commands, in addition to those of all plugins.
type use struct{ commands, keys []string }

// Examinations implements operate.Examined: the shared server, and those with which plugins have
// registered clients of their own.
func (p *Plugin) Examinations() []operate.Examination {
	shared := &examined{place: p.Name(), cfg: p.cfg.ClientConfig}
	shared.uses = append(shared.uses, use{keys: append(probesOf(p.cfg.Domains), probeKey)})
	for _, stream := range p.delays.topics() {
		shared.uses = append(shared.uses, use{delayCommands(), []string{dueKey(stream)}})
	}
	servers := []*examined{shared}
	p.delays.mu.Lock()
	reg := p.delays.routes
	p.delays.mu.Unlock()
	if reg == nil {
		return nil
	}
	for _, s := range reg.Services() {
		server, ok := s.Service.(*Server)
		if !ok || server.p != p {
			continue
		}
		at := shared
		if server.own != nil {
			place := p.Name() + " at " + server.own.address()
			i := slices.IndexFunc(servers, func(e *examined) bool { return e.place == place })
			if i < 0 {
				i = len(servers)
				servers = append(servers, &examined{place: place, cfg: *server.own})
			}
			at = servers[i]
		}
		at.uses = append(at.uses, use{server.Commands, server.keys})
	}
	list := make([]operate.Examination, len(servers))
	for i, s := range servers {
		list[i] = s.examination()
	}
	return list
}

func (e *examined) examination() operate.Examination {
	return operate.Examination{
		Place:   e.place,
		Remedy:  "start the server, or correct its address, user, password, and whether it speaks TLS (tls.enabled) in the settings",
		Runbook: "configs/RUNBOOK.md, MillraceRedisReadErrors",
		Open: func(ctx context.Context) ([]operate.Examine, func(), error) {
			c, err := NewClient(e.cfg, nil)
			if err != nil {
				return nil, nil, err
			}
			closeIt := func() { _ = c.Close() } // it was only read
			if err := pingAny(ctx, c); err != nil {
				closeIt()
				return nil, nil, fmt.Errorf("%w: %s: %w", pipeline.ErrUnavailable, e.cfg.address(), err)
			}
			return []operate.Examine{
				onNodes(c, "version", ofInfo("server", versionCheck)),
				onNodes(c, "eviction", ofInfo("memory", evictionCheck)),
				onNodes(c, "memory", ofInfo("memory", memoryCheck)),
				onNodes(c, "persistence", ofInfo("persistence", persistenceCheck)),
				onNodes(c, "replicas", ofInfo("replication", replicasCheck)),
				{What: "rights", Read: func(ctx context.Context) ([]operate.Check, error) { return e.rights(ctx, c) }},
				onNodes(c, "clock", readClock),
				onNodes(c, "latency", readLatency),
			}, closeIt, nil
		},
	}
}

// onNodes examines the server, or each primary of a Cluster. In a Cluster the names of the checks have
// the addresses.
func onNodes(c goredis.UniversalClient, what string, read func(context.Context, *goredis.Client) (operate.Check, error)) operate.Examine {
	return operate.Examine{What: what, Read: func(ctx context.Context) ([]operate.Check, error) {
		cluster, ok := c.(*goredis.ClusterClient)
		if !ok {
			node, ok := c.(*goredis.Client)
			if !ok {
				return nil, fmt.Errorf("redis: unexpected client %T", c)
			}
			check, err := read(ctx, node)
			if err != nil {
				return nil, answered(err)
			}
			if check.Level == "" { // another check says why
				return nil, nil
			}
			return []operate.Check{check}, nil
		}
		var mu sync.Mutex
		var checks []operate.Check
		var errs []error
		err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
			check, err := read(ctx, node)
			mu.Lock()
			defer mu.Unlock()
			if at := node.Options().Addr; err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", at, answered(err)))
			} else if check.Level != "" {
				check.Text = at + ": " + check.Text
				checks = append(checks, check)
			}
			return nil
		})
		if err != nil {
			errs = append(errs, answered(err))
		}
		sorted.By(checks, func(a, b operate.Check) int { return cmp.Compare(a.Text, b.Text) })
		return checks, errors.Join(errs...)
	}}
}

// ofInfo returns what check says about a section of INFO. CONFIG would say more, and managed services
// refuse it. A server that lacks the sections, such as that of the embedded environment, gets one check for
// all of them.
func ofInfo(section string, check func(info) operate.Check) func(context.Context, *goredis.Client) (operate.Check, error) {
	return func(ctx context.Context, node *goredis.Client) (operate.Check, error) {
		text, err := node.Info(ctx, section).Result()
		if err != nil {
			switch {
			case !poll.IsReply(err):
				return operate.Check{}, err
			case !lacksSections(err):
				return unknown(err.Error()), nil
			case section == "server":
				return operate.Check{
					Level: operate.Warn, Text: "this server does not tell its version, its memory, its persistence and its replicas: " + err.Error(),
					Remedy: "run doctor with the settings of the real servers; the one inside the process (environment: embedded) is for laptops",
				}, nil
			}
			return operate.Check{}, nil
		}
		return check(info(text)), nil
	}
}

// lacksSections reports whether a server says that it has no such section of INFO. Redis and Valkey answer with an
// empty text, and with NOPERM to a user without the right.
func lacksSections(reply error) bool { return strings.HasSuffix(reply.Error(), "is not supported") }

// unknown is the check of what the server does not tell.
func unknown(why string) operate.Check {
	return operate.Check{
		Level: operate.Warn, Text: "not known: " + why,
		Remedy: "give the user the right to run INFO (+info), or ask who runs the server",
	}
}

// info is a section of INFO.
type info string

// missing returns the first of fields that the section lacks.
func (i info) missing(fields ...string) (field string, is bool) {
	for _, f := range fields {
		if _, has := infoField(string(i), f); !has {
			return f, true
		}
	}
	return "", false
}

func (i info) text(field string) string {
	text, _ := infoField(string(i), field)
	return text
}

// number returns a field, or 0 for one that is no number.
func (i info) number(field string) int64 {
	n, _ := strconv.ParseInt(i.text(field), 10, 64)
	return n
}

const oldestMajor = 7 // the command set of Redis 7.0

func versionCheck(i info) operate.Check {
	name, version := "Valkey", i.text("valkey_version")
	if version == "" {
		name, version = "Redis", i.text("redis_version")
	}
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	switch {
	case err != nil:
		return unknown("INFO has no redis_version")
	case n < oldestMajor:
		return operate.Check{Level: operate.Fail, Text: fmt.Sprintf("%s %s", name, version), Remedy: "upgrade to Redis 7.0 or Valkey, because older servers lack commands"}
	}
	return operate.Check{Level: operate.OK, Text: name + " " + version}
}

// evictionPolicy is the only maxmemory-policy that keeps unread entries.
const evictionPolicy = "noeviction"

const runbookLost = "configs/RUNBOOK.md, MillraceEntriesLost"

func evictionCheck(i info) operate.Check {
	switch policy := i.text("maxmemory_policy"); policy {
	case evictionPolicy:
		return operate.Check{Level: operate.OK, Text: "maxmemory-policy is noeviction"}
	case "":
		return unknown("INFO has no maxmemory_policy; it must be noeviction")
	default:
		return operate.Check{
			Level: operate.Fail, Text: fmt.Sprintf("maxmemory-policy is %s, so a full server removes streams that nobody has read", policy),
			Remedy: "set maxmemory-policy to noeviction", Runbook: runbookLost,
		}
	}
}

// Parts of the memory that are in use, in percent.
const (
	memoryWarn = 75
	memoryFail = 95
)

func memoryCheck(i info) operate.Check {
	if field, is := i.missing("used_memory", "maxmemory"); is {
		return unknown("INFO has no " + field)
	}
	used, limit, machine := i.number("used_memory"), i.number("maxmemory"), i.number("total_system_memory")
	const remedy = "give the server more memory, or remove data"
	share := func(of int64) int64 { return used * 100 / of }
	switch {
	case limit == 0 && machine > 0 && share(machine) >= memoryWarn:
		return operate.Check{Level: operate.Fail, Text: fmt.Sprintf("%d %% of the machine's %s are in use, and maxmemory is not set", share(machine), size(machine)), Remedy: remedy}
	case limit == 0:
		return operate.Check{
			Level: operate.Warn, Text: fmt.Sprintf("%s are in use, and maxmemory is not set, so the kernel may end the server", size(used)),
			Remedy: "set maxmemory below the memory of the machine, so that a full server refuses writes instead",
		}
	case share(limit) >= memoryFail:
		return operate.Check{Level: operate.Fail, Text: fmt.Sprintf("%d %% of maxmemory (%s) are in use, and a full server refuses writes", share(limit), size(limit)), Remedy: remedy}
	case share(limit) >= memoryWarn:
		return operate.Check{Level: operate.Warn, Text: fmt.Sprintf("%d %% of maxmemory (%s) are in use", share(limit), size(limit)), Remedy: remedy}
	}
	return operate.Check{Level: operate.OK, Text: fmt.Sprintf("%d %% of maxmemory (%s) are in use", share(limit), size(limit))}
}

func size(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

func persistenceCheck(i info) operate.Check {
	if field, is := i.missing("aof_enabled", "rdb_last_bgsave_status"); is {
		return unknown("INFO has no " + field)
	}
	const remedy = "read the server's log, and look at the space and the rights of its folder"
	switch aof := i.text("aof_enabled") == "1"; {
	case i.text("rdb_last_bgsave_status") != "ok":
		return operate.Check{Level: operate.Fail, Text: "the last snapshot failed, and the server may refuse writes", Remedy: remedy}
	case aof && (i.text("aof_last_write_status") != "ok" || i.text("aof_last_bgrewrite_status") != "ok"):
		return operate.Check{Level: operate.Fail, Text: "the append-only file can't be written", Remedy: remedy}
	case !aof:
		return operate.Check{
			Level: operate.Warn, Text: "the append-only file is off, so a restart loses what was written since the last snapshot",
			Remedy: "set appendonly to yes with appendfsync everysec, unless all that is lost may be lost", Runbook: "configs/RUNBOOK.md, MillraceStreamsLost",
		}
	}
	return operate.Check{Level: operate.OK, Text: "the append-only file is on"}
}

func replicasCheck(i info) operate.Check {
	if field, is := i.missing("role", "connected_slaves"); is {
		return unknown("INFO has no " + field)
	}
	_, required := infoField(string(i), "min_slaves_good_slaves") // only with min-replicas-to-write
	switch n := i.number("connected_slaves"); {
	case i.text("role") != "master":
		return operate.Check{
			Level: operate.Fail, Text: "the server is a replica, which refuses writes",
			Remedy: "name the primary in the settings, or the sentinels (master_name)",
		}
	case n == 0:
		return operate.Check{
			Level: operate.Warn, Text: "no replica, so the loss of this server loses its streams",
			Remedy: "add a replica, or use a service that has one", Runbook: "configs/RUNBOOK.md, MillraceStreamsLost",
		}
	case !required:
		return operate.Check{
			Level: operate.Warn, Text: fmt.Sprintf("%d connected, and min-replicas-to-write is 0, so a primary that is cut off accepts writes that a failover loses", n),
			Remedy: "set min-replicas-to-write to 1",
		}
	case i.number("min_slaves_good_slaves") == 0:
		return operate.Check{Level: operate.Fail, Text: "no replica is up to date, so the server refuses writes (min-replicas-to-write)", Remedy: "repair the replicas"}
	default:
		return operate.Check{Level: operate.OK, Text: fmt.Sprintf("%d connected, %d of them up to date", n, i.number("min_slaves_good_slaves"))}
	}
}

// rights runs the check of a start for all plugins that use the server.
func (e *examined) rights(ctx context.Context, c goredis.UniversalClient) ([]operate.Check, error) {
	var checks []operate.Check
	keys := 0
	for _, u := range e.uses {
		keys += len(u.keys)
		err := checkRights(ctx, c, u.commands, u.keys...)
		var denied *deniedError
		switch {
		case errors.As(err, &denied):
			checks = append(checks, operate.Check{
				Level: operate.Fail, Text: fmt.Sprintf("the ACL user may not run these commands on key %q: %s", denied.key, strings.Join(denied.commands, ", ")),
				Remedy: "grant the ACL user these commands on the key", Runbook: "plugins/redis/README.md#configuration",
			})
		case err != nil:
			return checks, answered(err)
		}
	}
	if len(checks) == 0 {
		checks = []operate.Check{{Level: operate.OK, Text: fmt.Sprintf("the user may run all commands that the plugins use (%d keys tried)", keys)}}
	}
	return checks, nil
}

const (
	samples    = 5                    // commands of a measurement
	latencyMax = 5 * time.Millisecond // within one zone it is below 1 ms
)

// readClock compares the clock of the server with that of this process.
func readClock(ctx context.Context, node *goredis.Client) (operate.Check, error) {
	return operate.Clock(ctx, func(ctx context.Context) (time.Time, error) { return node.Time(ctx).Result() })
}

// readLatency measures the median time of a command.
func readLatency(ctx context.Context, node *goredis.Client) (operate.Check, error) {
	var took []time.Duration
	for range samples {
		asked := time.Now()
		if err := node.Ping(ctx).Err(); err != nil {
			return operate.Check{}, err
		}
		took = append(took, time.Since(asked))
	}
	slices.Sort(took)
	return latencyCheck(took[len(took)/2]), nil
}

func latencyCheck(median time.Duration) operate.Check {
	text := fmt.Sprintf("a command takes %s", median.Round(10*time.Microsecond))
	if median > latencyMax {
		return operate.Check{Level: operate.Warn, Text: text, Remedy: "run the instances in the zone of the server, or look what keeps the server busy (SLOWLOG)"}
	}
	return operate.Check{Level: operate.OK, Text: text}
}

var _ operate.Examined = (*Plugin)(nil)
