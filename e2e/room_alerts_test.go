package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// roomTrouble is real trouble of waiting rooms, and the alert that it raises.
type roomTrouble struct {
	alert string
	begin func(*roomWatch) // before the alert is looked at for the first time
	step  func(*roomWatch) // makes the trouble, again until the alert is raised
	end   func(*roomWatch)
	slow  bool   // a machine that stands still raises it, too
	log   string // what the runbook says that a log contains
}

// roomWatch scrapes the processes of a fleet.
type roomWatch struct {
	*roomStory
	rules   map[string]rulefmt.Rule
	past    *recorded
	scraped []*roomProcess
	guest   *roomGuest
	token   string
}

func newRoomWatch(t *testing.T, name string, roles []string, settings ...string) *roomWatch {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("MILLRACE_TEST_REDIS: redis-server is not installed")
	}
	tier.Met(t, "redis")
	binary(t)
	fleet, err := startRoomFleet(name, roles, settings...)
	require.NoError(t, err)
	t.Cleanup(fleet.stop)
	w := &roomWatch{roomStory: &roomStory{roomFleet: fleet, t: t}, rules: map[string]rulefmt.Rule{}, scraped: fleet.processes}
	for _, rule := range alerts(t) {
		w.rules[rule.Alert] = rule
	}
	return w
}

func (w *roomWatch) scrape() {
	w.t.Helper()
	for _, p := range w.scraped {
		w.past.scrape(w.t, p.ops)
	}
}

// fires reports whether an alert is raised now, or when this state lasts.
func (w *roomWatch) fires(alert string) bool {
	w.t.Helper()
	e := newEngine(w.t)
	for _, r := range []*recorded{w.past, w.past.stretched(past)} {
		now, err := eval(w.t.Context(), e, r, w.rules[alert].Expr, r.last)
		require.NoError(w.t, err, alert)
		if len(now) > 0 {
			return true
		}
	}
	return false
}

// raise makes a trouble until its alert is raised.
func (w *roomWatch) raise(c roomTrouble) {
	w.event = strings.ToLower(c.alert)
	if c.begin != nil {
		c.begin(w)
	}
	w.past = newRecorded()
	for range 2 {
		w.scrape()
		require.False(w.t, !c.slow && w.fires(c.alert), "%s is raised without trouble", c.alert)
		pause(w.t, 250*time.Millisecond)
	}
	began := time.Now()
	w.await(c.alert+" is raised", func() error {
		if c.step != nil {
			c.step(w)
		}
		w.scrape()
		if !w.fires(c.alert) {
			return errors.New("it is not raised")
		}
		return nil
	})
	w.t.Logf("%s is raised after %s", c.alert, time.Since(began).Round(time.Millisecond))
	if c.log != "" {
		w.await(c.log, func() error {
			if !slices.ContainsFunc(w.processes, func(p *roomProcess) bool { return strings.Contains(p.log.String(), c.log) }) {
				return errors.New("no log contains it")
			}
			return nil
		})
	}
	if c.end != nil {
		c.end(w)
	}
}

// opened opens the room of the alert, and waits until it has series.
func (w *roomWatch) opened(fields string) {
	w.t.Helper()
	w.equals("the room is open", http.StatusOK, func() any { // after the trouble before
		return w.operate("open", `{"by":"eve","why":"test"`+fields+`}`, nil)
	})
	w.await("the event has series", func() error {
		w.past = newRecorded()
		w.scrape()
		return w.has(`millrace_room_aside_total{event="` + w.event + `"}`)
	})
}

// has returns an error if no series is scraped that a selector matches.
func (w *roomWatch) has(selector string) error {
	matchers, err := parser.ParseMetricSelector(selector)
	if err == nil && len(w.past.match(matchers)) == 0 {
		err = fmt.Errorf("nothing is scraped that %s selects", selector)
	}
	return err
}

// visitor enters a user without a stream.
func (w *roomWatch) visitor(user string, broker int) said {
	w.t.Helper()
	status, answer := w.call(http.MethodGet, user, broker, "")
	require.Equal(w.t, http.StatusOK, status, "%+v", answer)
	return answer
}

// admitted waits for the token of a user without a stream.
func (w *roomWatch) admitted(user string, broker int) (token string) {
	w.t.Helper()
	w.await("the token of "+user, func() error {
		if token = w.visitor(user, broker).Token; token == "" {
			return errors.New("there is none")
		}
		return nil
	})
	return token
}

// readsStreams gives (+) or takes (-) the right to read streams with a group.
func (w *roomWatch) readsStreams(sign string) {
	w.t.Helper()
	require.NoError(w.t, w.redis.Do(w.t.Context(), "ACL", "SETUSER", "default", sign+"xreadgroup").Err())
}

func (w *roomWatch) withoutRedis() {
	if w.redis.Ping(w.t.Context()).Err() == nil {
		w.stopRedis()
	}
}

// pauseRedis makes Redis answer no command for a time.
func (w *roomWatch) pauseRedis(d time.Duration) {
	w.t.Helper()
	require.NoError(w.t, w.redis.Do(w.t.Context(), "CLIENT", "PAUSE", d.Milliseconds(), "ALL").Err())
}

// roomTroubles are in an order in which the trouble of one alert does not raise the next one.
func roomTroubles() []roomTrouble {
	return []roomTrouble{
		{
			alert: "MillraceRoomRecordsAside",
			begin: func(w *roomWatch) { w.opened(`,"capacity":10`) },
			step: func(w *roomWatch) {
				_, err := w.redis.ZAdd(w.t.Context(), w.key("WAITING"), goredis.Z{Score: 1, Member: "no record"}).Result()
				require.NoError(w.t, err)
			},
			end: func(w *roomWatch) {
				require.Equal(w.t, map[string]string{"no record": "undecodable"}, w.redis.HGetAll(w.t.Context(), w.key("WAITING_ASIDE")).Val())
			},
		},
		{
			alert: "MillraceRoomDrawFailing",
			begin: func(w *roomWatch) {
				w.opened(`,"mode":"shuffle","capacity":10`)
				w.guest = w.enter("ann", 0)
				require.NoError(w.t, w.redis.Set(w.t.Context(), w.key("ROOM_SHUFFLE"), "of another program", 0).Err())
			},
			step: func(w *roomWatch) {
				if w.status().State == "pre-queue" {
					w.change("set", fmt.Sprintf(`,"opensAt":%d`, time.Now().UnixMilli()))
				}
			},
			log: "draw of a pre-queue failed",
			end: func(w *roomWatch) {
				require.Empty(w.t, w.guest.all("promoted"))
				require.NoError(w.t, w.redis.Del(w.t.Context(), w.key("ROOM_SHUFFLE")).Err())
				w.guest.promoted()
				w.guest.stop()
			},
		},
		{
			alert: "MillraceEventServiceFailing",
			begin: func(w *roomWatch) { w.events.set(w.event, "unavailable") },
			step: func(w *roomWatch) {
				status, answer := w.callOnce(http.MethodGet, "ann", 0, "")
				require.Equal(w.t, []any{http.StatusServiceUnavailable, "event_service"}, []any{status, answer.Error})
			},
			// The runbook opens the room without the Event Service.
			end: func(w *roomWatch) {
				w.run(0, "open", w.event, "--capacity", "500", "--why", "ticket 7")
				w.admitted("ann", 0)
			},
		},
		{
			alert: "MillraceRoomWithoutCapacity",
			begin: func(w *roomWatch) { w.events.set(w.event, "null"); w.opened("") },
			step:  func(w *roomWatch) { w.visitor("ann", 0) },
			end: func(w *roomWatch) {
				require.Regexp(w.t, `capacity +unknown`, w.run(0, "status", w.event))
				w.run(0, "set", w.event, "--capacity", "500", "--why", "ticket 7")
				w.admitted("ann", 0)
			},
		},
		{
			alert: "MillraceRoomSoldOut",
			begin: func(w *roomWatch) {
				w.opened(`,"capacity":1`)
				w.token = w.admitted("ann", 0)
				w.visitor("ben", 0)
			},
			step: func(w *roomWatch) { require.NoError(w.t, w.gate(0).Finish(w.t.Context(), w.event, w.token, "", true)) },
			end: func(w *roomWatch) {
				require.Regexp(w.t, `no promotions +sold out`, w.run(0, "status", w.event))
				w.run(0, "set", w.event, "--capacity", "2", "--why", "returned")
				w.admitted("ben", 0)
			},
		},
		{
			alert: "MillraceRoomOverCapacity",
			begin: func(w *roomWatch) {
				w.opened(`,"capacity":2`)
				w.admitted("ann", 0)
				w.admitted("ben", 0)
			},
			step: func(w *roomWatch) { w.change("set", `,"capacity":1`) },
			end: func(w *roomWatch) {
				w.run(0, "set", w.event, "--capacity", "2", "--why", "ticket 7")
				eve := w.enter("eve", 0)
				eve.promoted() // when a lease has ended
				eve.stop()
			},
		},
		{
			alert: "MillraceRoomSalesRefused",
			begin: func(w *roomWatch) {
				w.opened(`,"capacity":1`)
				w.token = w.admitted("ann", 0)
				w.equals("the lease is over", "lease_over", func() any { return w.find("ann").Reason })
				w.admitted("ben", 0)
			},
			// Once, at a broker without users of the event.
			step: func(w *roomWatch) {
				if w.token != "" {
					require.ErrorIs(w.t, w.gate(1).Finish(w.t.Context(), w.event, w.token, "", true), shopmiddleware.ErrUsed)
					w.token = ""
				}
			},
		},
		{
			alert: "MillraceRoomPromotionsDelayed",
			begin: func(w *roomWatch) {
				w.opened(`,"capacity":10,"concurrency":0`)
				w.guest = w.enter("ann", 0)
			},
			step: func(w *roomWatch) {
				if len(w.guest.all("promoted")) > 0 {
					return
				}
				broker := w.processes[0].cmd.Process
				require.NoError(w.t, broker.Signal(syscall.SIGSTOP))
				w.change("set", `,"concurrency":10`)
				pause(w.t, 7*time.Second)
				require.NoError(w.t, broker.Signal(syscall.SIGCONT))
				w.guest.promoted()
			},
			end: func(w *roomWatch) { w.guest.stop() },
		},
		{
			alert: "MillraceRoomScriptSlow", slow: true,
			begin: func(w *roomWatch) { w.opened("") },
			step:  func(w *roomWatch) { w.pauseRedis(500 * time.Millisecond); pause(w.t, time.Second) },
		},
		{
			alert: "MillraceRoomTicksMissed",
			begin: func(w *roomWatch) { w.opened("") },
			step:  func(w *roomWatch) { w.pauseRedis(4 * time.Second); pause(w.t, 5*time.Second) },
		},
		{
			alert: "MillraceRoomSignsFailing",
			begin: func(w *roomWatch) {
				w.opened(`,"capacity":10,"concurrency":0`)
				w.guest = w.enter("ann", 0)
			},
			step: (*roomWatch).withoutRedis,
			log:  "signs of life not sent",
			end: func(w *roomWatch) {
				require.NoError(w.t, w.startRedis())
				w.guest.stop()
			},
		},
		{
			alert: "MillraceRoomShopFailing",
			begin: func(w *roomWatch) {
				w.opened(`,"capacity":10`)
				w.token = w.admitted("ann", 0)
			},
			step: func(w *roomWatch) {
				w.withoutRedis()
				_, err := w.gate(0).Gate.Verify(w.t.Context(), w.event, w.token, "session")
				require.ErrorIs(w.t, err, shopmiddleware.ErrUnavailable)
			},
			log: "request of the shop failed",
			end: func(w *roomWatch) { require.NoError(w.t, w.startRedis()) },
		},
		{
			alert: "MillraceRoomHeldAgain",
			begin: func(w *roomWatch) { w.opened("") },
			step: func(w *roomWatch) {
				w.stopRedis()
				require.NoError(w.t, w.startRedis())
				pause(w.t, time.Second)
			},
			log: "ticks had stopped or the server is another one",
		},
		{
			alert: "MillraceRoomNotificationsWait",
			begin: func(w *roomWatch) {
				w.opened(`,"capacity":2000`)
				w.readsStreams("-")
			},
			step: func(w *roomWatch) { // users as the older system adds them
				if w.status().Promoted > 0 {
					return
				}
				var users []goredis.Z
				for i := range 1100 {
					users = append(users, goredis.Z{Score: float64(i + 1), Member: fmt.Sprintf(`{"userId":"user-%d"}`, i)})
				}
				require.NoError(w.t, w.redis.ZAdd(w.t.Context(), w.key("WAITING"), users...).Err())
				w.equals("all are promoted", 1100, func() any { return w.status().Promoted })
			},
			end: func(w *roomWatch) {
				w.readsStreams("+")
				w.equals("the stream is read", 0, func() any { return w.redis.XLen(w.t.Context(), w.key("ENTRY")).Val() })
			},
		},
		{
			alert: "MillraceRoomWithoutTicks",
			begin: func(w *roomWatch) {
				w.opened(`,"capacity":10,"concurrency":0`)
				w.guest = w.enter("ann", 0)
				w.guest.stands(0, 1)
			},
			step: func(w *roomWatch) {
				for _, p := range w.processes[2:] {
					p.kill()
				}
				w.scraped = w.processes[:2]
			},
		},
	}
}

// Each alert of the waiting room is raised by real trouble. The trouble is one that the runbook
// names, and the log contains what the runbook says.
func TestRealTroubleOfAWaitingRoomRaisesItsAlerts(t *testing.T) {
	tier.Rest(t, tier.Room)
	t.Parallel()
	w := newRoomWatch(t, "alerts", []string{"broker", "broker", "dispatcher", "dispatcher"},
		"grace: 2m", "seen_interval: 1s", "token_ttl: 15s", "ready_ttl: 30s", "max_events: 50")
	raised := []string{"MillraceRoomReplicasMissing"}
	for _, c := range roomTroubles() {
		raised = append(raised, c.alert)
		t.Run(c.alert, func(t *testing.T) {
			w.t = t
			w.raise(c)
		})
	}
	var all []string
	for name := range w.rules {
		if strings.HasPrefix(name, "MillraceRoom") || name == "MillraceEventServiceFailing" {
			all = append(all, name)
		}
	}
	require.ElementsMatch(t, all, raised)
}

// A replica is gone: no user is promoted, and the alert says so. With the replica the next user is
// promoted without a restart.
func TestAMissingReplicaRaisesItsAlert(t *testing.T) {
	tier.Rest(t, tier.Room)
	t.Parallel()
	w := newRoomWatch(t, "replicas", []string{"broker, dispatcher"}, "replicas: 1", "grace: 2m", "token_ttl: 10m", "ready_ttl: 10m")
	replica := startNode(t, "redis-server", "--replicaof", "127.0.0.1 "+regexp.MustCompile(`\d+$`).FindString(w.redis.Options().Addr))
	replica.shows(replica.section("replication"), "master_link_status:up")
	w.raise(roomTrouble{
		alert: "MillraceRoomReplicasMissing",
		begin: func(w *roomWatch) {
			w.opened(`,"capacity":10,"concurrency":1`)
			w.enter("ann", 0).promoted()
			w.guest = w.enter("ben", 0)
		},
		step: func(w *roomWatch) { replica.kill() },
		log:  "too few replicas have a tick",
		end: func(w *roomWatch) {
			require.Contains(w.t, w.redis.Info(w.t.Context(), "replication").Val(), "connected_slaves:0")
			status, _ := w.callOnce(http.MethodDelete, "ann", 0, "")
			require.Equal(w.t, http.StatusServiceUnavailable, status)
			require.False(w.t, w.fires("MillraceRoomWithoutTicks"))
			require.Empty(w.t, w.guest.all("promoted"))
			replica.run()
			w.guest.promoted()
			w.await("the alert has ended", func() error {
				w.past = newRecorded()
				w.scrape()
				if w.fires("MillraceRoomReplicasMissing") {
					return errors.New("it is raised")
				}
				return nil
			})
		},
	})
}
