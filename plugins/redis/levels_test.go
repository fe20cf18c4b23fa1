package redis

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// talker is an instance whose log has a level that can be changed.
type talker struct {
	ordered
	level *slog.LevelVar
	log   *lockedLog
	name  string
}

type lockedLog struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// talks starts an instance whose settings have the level info.
func talks(t *testing.T, s redistest.Server, db int) talker {
	t.Helper()
	i := talker{level: new(slog.LevelVar), log: &lockedLog{}, name: "test-" + watermill.NewULID()}
	p := New()
	p.cfg.Addrs, p.cfg.DB = []string{s.Addr}, db
	env := pipeline.Env{Instance: i.name, Version: "v1.2.3", Logger: slog.New(slog.NewTextHandler(i.log, &slog.HandlerOptions{Level: i.level})), LogLevel: i.level}
	reg, err := pipeline.NewRegistry(env, p, withRoutes{p})
	require.NoError(t, err)
	i.ordered = ordered{p, reg, s.Client(t, func(o *goredis.Options) { o.DB = db })}
	i.starts(t)
	return i
}

// has waits for a level, and for the line about it. Both change under the mutex that the state is read with.
func (i talker) has(t *testing.T, level slog.Level) {
	t.Helper()
	redistest.Eventually(t, "the level is "+level.String(), func() bool { return i.Plugin.levels.Load().state().Level == levelName(level) })
}

// levels uses the action, and returns its line.
func (o ordered) levels(t *testing.T, in operate.Input) string {
	t.Helper()
	answer, err := o.leveled(t, in)
	require.NoError(t, err)
	return answer.Lines[0]
}

func (o ordered) leveled(t *testing.T, in operate.Input) (operate.Answer, error) {
	t.Helper()
	a := o.levelAction()
	in = a.Complete(in)
	require.NoError(t, a.Check(in))
	return a.Do(t.Context(), o.reg, in, operate.Use{Who: "ann", Why: "ticket 7"})
}

func (o ordered) previewsLevel(t *testing.T, in operate.Input) operate.Answer {
	t.Helper()
	a := o.levelAction()
	answer, err := a.Preview(t.Context(), o.reg, a.Complete(in))
	require.NoError(t, err)
	return answer
}

// statuses is the report of instances, by name.
func (o ordered) statuses(t *testing.T) map[string]instanceStatus {
	t.Helper()
	all, _, err := readInstances(t.Context(), o.c, shownInstances)
	require.NoError(t, err)
	found := map[string]instanceStatus{}
	for _, i := range all {
		found[i.name] = i.status()
	}
	return found
}

// A command changes the level of all instances, also of one that starts later, and takes it back. Each instance
// says so, and each change has a row in the audit.
func TestTheLogLevelOfAllInstances(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		t.Parallel()
		a, b, command := talks(t, s, db), talks(t, s, db), process(t, s, db)
		require.Equal(t, "info", a.statuses(t)[b.name].Log.Level)
		require.Equal(t, "No log level is ordered for all instances, so that of the settings applies already.", command.levels(t, operate.Input{"level": {"settings"}}))
		preview := command.previewsLevel(t, operate.Input{"level": {"debug"}})
		require.Equal(t, "Would set the log level of all instances to debug for 10m0s, within 5s on every instance that runs. Afterwards that of the settings applies again.", preview.Lines[0])
		require.Len(t, preview.Tables[0].Rows, 2)
		require.Equal(t, "info (settings)", preview.Tables[0].Rows[0][1])
		require.Zero(t, a.c.Exists(t.Context(), levelsKey, levelsAuditKey).Val(), "a preview changes nothing, and nothing is recorded without a change")

		require.Regexp(t, `^Set the log level of all instances to debug until 20\S+Z, within 5s on every`, command.levels(t, operate.Input{"level": {"debug"}, "for": {"2m"}}))
		a.has(t, slog.LevelDebug)
		b.has(t, slog.LevelDebug)
		require.Contains(t, b.log.String(), `msg="log level changed by an operator" level=debug`)
		require.Contains(t, b.log.String(), `who=ann why="ticket 7"`)
		late := talks(t, s, db)
		require.Equal(t, slog.LevelDebug, late.level.Level(), "from its start on")
		redistest.Eventually(t, "all say so", func() bool {
			all := a.statuses(t)
			return all[a.name].Log.Level == "debug" && all[b.name].Log.Level == "debug" && all[late.name].Log.Level == "debug"
		})
		said := a.statuses(t)[b.name].Log
		require.Equal(t, []string{"debug", "info", "ann", "ticket 7"}, []string{said.Level, said.Setting, said.Who, said.Why})
		require.WithinDuration(t, time.Now().Add(2*time.Minute), *said.Until, time.Minute)
		require.Regexp(t, `^debug until 20\S+Z, by ann, because: ticket 7; then info \(settings\)$`, said.sentence())
		pages := a.Console()
		instances := slices.IndexFunc(pages, func(p console.Page) bool { return p.Path == "instances" })
		page, err := pages[instances].Panels[0].Load(t.Context(), console.Query{Registry: a.reg})
		require.NoError(t, err)
		require.Contains(t, fmt.Sprint(page), said.sentence())
		require.Contains(t, fmt.Sprint(page), "runs, and serves this page")
		for _, row := range page.(console.Table).Rows {
			require.Regexp(t, `^(\d+m)?(\d+s)? ago$`, row[3].Text, "started")
			require.Equal(t, []string{console.Unknown, console.Unknown, console.Unknown}, []string{row[4].Text, row[5].Text, row[6].Text}, "it has no chain")
		}
		report, err := command.instancesReport().Read(t.Context(), command.reg, nil)
		require.NoError(t, err)
		require.Len(t, report.Tables[0].Rows, 3)
		require.Contains(t, fmt.Sprint(report.Tables[0].Rows), said.sentence())

		require.Contains(t, command.previewsLevel(t, operate.Input{"level": {"settings"}}).Lines[0], "Would give all instances the log level of the settings again")
		require.Contains(t, command.levels(t, operate.Input{"level": {"settings"}}), "The log level of the settings applies again to all instances")
		a.has(t, slog.LevelInfo)
		b.has(t, slog.LevelInfo)
		late.has(t, slog.LevelInfo)
		require.Contains(t, b.log.String(), `msg="log level of the settings applies again" level=info`)
		require.Contains(t, command.levels(t, operate.Input{"level": {"settings"}}), "No log level is ordered")

		audit, err := a.AuditLogs()[1].Recent(t.Context(), operate.AuditFilter{}, 10)
		require.NoError(t, err)
		var rows []string
		for _, c := range audit.Changes {
			rows = append(rows, fmt.Sprint(c.Action, " ", c.Subject, " ", c.Who, " ", c.Why))
		}
		require.Equal(t, []string{"log level settings all instances ann ticket 7", "log level debug for 2m0s all instances ann ticket 7"}, rows)
	})
}

// An instance that was stopped is told apart from one that was killed, also after it has run again.
func TestAStoppedInstanceIsNotGone(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		t.Parallel()
		i, command := talks(t, s, db), process(t, s, db)
		own := service{i.Plugin}
		require.Nil(t, i.statuses(t)[i.name].Stopped)
		require.NoError(t, own.Stop(t.Context()))
		require.Greater(t, i.c.PTTL(t.Context(), stateKey(i.name)).Val(), 24*time.Hour, "it is known on the next day")
		stopped := i.statuses(t)[i.name]
		require.False(t, stopped.Runs)
		require.Equal(t, "v1.2.3", stopped.Version)
		require.WithinDuration(t, time.Now(), *stopped.Stopped, time.Minute)
		require.Regexp(t, `^stopped at 20\S+Z$`, stopped.words())
		report, err := command.instancesReport().Read(t.Context(), command.reg, nil)
		require.NoError(t, err)
		require.Contains(t, fmt.Sprint(report.Tables[0].Rows), stopped.words())
		gone := func() []operate.Check {
			work, err := operate.ReadWork(t.Context(), command.reg)
			require.NoError(t, err)
			return work.Gone
		}
		require.Empty(t, gone())

		require.NoError(t, own.Start(t.Context()))
		again := i.statuses(t)[i.name]
		require.True(t, again.Runs)
		require.Nil(t, again.Stopped)
		require.Equal(t, "info", again.Log.Level)
		require.NoError(t, i.presence.loops.Stop(t.Context())) // it is killed
		require.NoError(t, i.c.Del(t.Context(), presenceKey(i.name)).Err())
		require.Equal(t, "gone", i.statuses(t)[i.name].words())
		require.Len(t, gone(), 1)
		require.Equal(t, "instance "+i.name, gone()[0].Name)
		require.NoError(t, i.c.HSet(t.Context(), instancesKey, i.name, time.Now().Add(-goneTold).UnixMilli()).Err())
		require.Empty(t, gone(), "whoever looks later looks at the instances")
	})
}

// The order ends by the clock of the instance, so it also ends while Redis hangs, and in one that was not reached.
func TestALogLevelEndsWithoutRedis(t *testing.T) {
	t.Parallel()
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		i := talks(t, s.Server, 0)
		i.levels(t, operate.Input{"level": {"debug"}, "for": {"3s"}})
		require.Equal(t, slog.LevelDebug, i.level.Level(), "at once, where it was ordered")
		s.SetPaused(true)
		defer s.SetPaused(false)
		i.has(t, slog.LevelInfo)
	})
}

// An order for one instance concerns that one alone, and one for all takes its place.
func TestTheLogLevelOfOneInstance(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		t.Parallel()
		a, b := talks(t, s, db), talks(t, s, db)
		only := func(level, name string) operate.Input { return operate.Input{"level": {level}, "instance": {name}} }
		_, err := a.leveled(t, only("debug", "nobody"))
		var wrong *operate.InputError
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, "instance", wrong.Field)
		require.Contains(t, wrong.Problem, `no instance that runs has the name "nobody"; these run: `+min(a.name, b.name)+", "+max(a.name, b.name))
		require.Contains(t, a.levels(t, only("debug", b.name)), "Set the log level of the instance "+b.name+" to debug")
		b.has(t, slog.LevelDebug)
		require.Equal(t, slog.LevelInfo, a.level.Level())
		require.Contains(t, a.levels(t, only("settings", a.name)), "No log level is ordered for the instance "+a.name)

		a.levels(t, operate.Input{"level": {"error"}})
		require.Equal(t, slog.LevelError, a.level.Level())
		b.has(t, slog.LevelError)
		require.Contains(t, a.log.String(), "level=error", "the line is written before the level hides it")
		b.levels(t, only("settings", b.name))
		require.Equal(t, slog.LevelInfo, b.level.Level(), "although another one is ordered for all")
		require.Equal(t, slog.LevelError, a.level.Level())
		b.levels(t, operate.Input{"level": {"settings"}})
		a.has(t, slog.LevelInfo)
		require.Contains(t, a.log.String(), `msg="log level of the settings applies again" level=info`, "it is written when the level shows it")
	})
}

// Of two copies of an order the later one holds, whoever has it. One that can't be read is none.
func TestTheLaterLogLevelHolds(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		i := talks(t, s, db)
		read := func() slog.Level {
			require.NoError(t, i.Plugin.levels.Load().read(t.Context(), i.c, i.name))
			return i.level.Level()
		}
		i.levels(t, operate.Input{"level": {"debug"}})
		old := i.c.HGet(t.Context(), levelsKey, "").Val()
		i.levels(t, operate.Input{"level": {"warn"}})
		require.NoError(t, i.c.HSet(t.Context(), levelsKey, "", old).Err(), "a failover has lost the later one")
		require.Equal(t, slog.LevelWarn, read())
		require.NoError(t, i.c.Del(t.Context(), levelsKey).Err(), "a wipe")
		require.Equal(t, slog.LevelWarn, read())
		for _, text := range []string{"", "x", "9999999999999999 9999999999999999 loud {}", "9999999999999999 9999999999999999 debug {", "a b debug {}"} {
			require.NoError(t, i.c.HSet(t.Context(), levelsKey, "", text).Err())
			require.Equal(t, slog.LevelWarn, read(), text)
		}
		future := time.Now().Add(1000 * time.Hour).UnixMicro()
		require.NoError(t, i.c.HSet(t.Context(), levelsKey, "", fmt.Sprintf("%d %d debug {}", future, future)).Err(), "of a server whose clock was ahead")
		require.Equal(t, slog.LevelDebug, read())
		require.WithinDuration(t, time.Now().Add(levelLongest), i.Plugin.levels.Load().all.ends, time.Minute, "no order is longer")
		i.levels(t, operate.Input{"level": {"error"}})
		require.Equal(t, slog.LevelError, i.level.Level())
	})
}

// An instance that can't read the orders keeps its level, and one whose log has no level says that it is unknown.
func TestLogLevelsThatCantBeRead(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		i := talks(t, s, db)
		i.levels(t, operate.Input{"level": {"debug"}})
		require.NoError(t, i.c.Del(t.Context(), levelsKey).Err())
		require.NoError(t, i.c.Set(t.Context(), levelsKey, "of another program", 0).Err())
		for range 2 {
			i.Plugin.levels.Load().follow(t.Context(), i.c, i.name)
		}
		require.Equal(t, slog.LevelDebug, i.level.Level())
		require.Contains(t, i.log.String(), "the orders about the log level can't be read")
		_, err := i.leveled(t, operate.Input{"level": {"info"}})
		require.ErrorContains(t, err, "WRONGTYPE")

		silent := process(t, s, db).starts(t)
		level, paused := silent.statuses(t)[silent.reg.Env().Instance].texts()
		require.Equal(t, []string{"unknown", ""}, []string{level, paused})
		require.NoError(t, service{i.Plugin}.Stop(t.Context()))
		require.Equal(t, slog.LevelInfo, i.level.Level(), "the service is not there to end it")
	})
}

func TestTheInputOfALogLevelIsChecked(t *testing.T) {
	a := New().levelAction()
	for field, in := range map[string]operate.Input{"level": {"level": {"loud"}}, "for": {"level": {"debug"}, "for": {"25h"}}} {
		var wrong *operate.InputError
		require.ErrorAs(t, a.Check(a.Complete(in)), &wrong)
		require.Equal(t, field, wrong.Field)
	}
	for _, length := range []string{"", "x", "0s", "-1m"} {
		require.Error(t, a.Check(a.Complete(operate.Input{"level": {"debug"}, "for": {length}})), length)
	}
	require.NoError(t, a.Check(a.Complete(operate.Input{"level": {"WARN"}})))
}

// The hash is bounded, also on a full server, and what has ended leaves it.
func TestTheLogLevelsAreBounded(t *testing.T) {
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		i := talks(t, s.Server, 0)
		pipe, now := i.c.Pipeline(), time.Now()
		for n := range levelsMost {
			pipe.HSet(t.Context(), levelsKey, fmt.Sprint("i", n), fmt.Sprintf("%d %d debug {}", now.UnixMicro(), now.Add(time.Hour).UnixMicro()))
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		only := operate.Input{"level": {"debug"}, "instance": {i.name}}
		_, err = i.leveled(t, only)
		require.ErrorIs(t, err, errLevelsFull)
		require.NoError(t, i.c.HSet(t.Context(), levelsKey, "i7", fmt.Sprintf("%d %d debug {}", now.UnixMicro()-2, now.UnixMicro()-1)).Err())
		require.NoError(t, i.c.ConfigSet(t.Context(), "maxmemory", "1").Err())
		require.ErrorContains(t, i.c.Set(t.Context(), "k", "v", 0).Err(), "OOM")
		i.levels(t, only)
		require.Equal(t, slog.LevelDebug, i.level.Level())
		require.Equal(t, "debug", i.statuses(t)[i.name].Log.Level, "its state is stored, too")
		require.False(t, i.c.HExists(t.Context(), levelsKey, "i7").Val())
		i.levels(t, operate.Input{"level": {"debug"}})
		require.Equal(t, int64(1), i.c.HLen(t.Context(), levelsKey).Val(), "an order for all takes the place of the others")
	})
}
