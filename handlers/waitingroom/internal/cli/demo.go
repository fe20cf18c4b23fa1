package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/waitingroom/checker"
	"github.com/millrace-io/millrace/handlers/waitingroom/demo"
	"github.com/millrace-io/millrace/handlers/waitingroom/demo/sim"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shopmiddleware"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/token"
)

const (
	demoTokenTTL = 5 * time.Second
	demoOutage   = 2 * time.Second  // of the Event Service
	demoStart    = 30 * time.Second // of the other processes
)

type demoFlags struct {
	app.DemoFlags
	users, seats, concurrency int
	events                    string
	noKill                    bool
}

func (c commands) demo() *cobra.Command {
	var f demoFlags
	cmd := c.h.SettingsFlags(c.h.JSONFlag(&cobra.Command{
		Use:   "demo",
		Short: "Send a crowd through a waiting room, and check what each user gets",
		Long: `Send a crowd through a waiting room, and check what each user gets.

A broker and a dispatcher run in this process, with a simulated Event Service, a ticket
shop, and Redis without other settings. Another broker and another dispatcher are
processes of their own, which are killed (SIGKILL). Users buy, abandon, leave, lose their
connection, or do nothing. The exit code is 0 only if the waiting room kept its rules. No
user is overtaken or lost, each slot becomes free again, and no seat is sold twice. Before,
the users of another room get their places by lot. The order is verified from its audit
file alone.`,
		Example: "  millrace room demo\n  millrace room demo --users 1000 --seats 400 --concurrency 100\n  millrace room demo --keep",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.runDemo(cmd, f) },
	}))
	flags := cmd.Flags()
	flags.IntVar(&f.users, "users", 300, "number of users")
	flags.IntVar(&f.seats, "seats", 150, "number of seats")
	flags.IntVar(&f.concurrency, "concurrency", 40, "maximum number of admitted users")
	flags.StringVar(&f.events, "event-service", string(sim.Unavailable), "first `behaviour` of the Event Service: "+modes())
	flags.BoolVar(&f.noKill, "no-kill", false, "kill no process")
	f.Flags(cmd)
	return cmd
}

func modes() string {
	var names []string
	for _, m := range sim.Modes() {
		names = append(names, string(m))
	}
	return strings.Join(names, ", ")
}

func (f demoFlags) validate() error {
	for name, n := range map[string]int{"users": f.users, "seats": f.seats, "concurrency": f.concurrency} {
		if n < 1 {
			return app.Usage("--%s must be > 0, got %d", name, n)
		}
	}
	if !slices.Contains(sim.Modes(), sim.Mode(f.events)) {
		return app.Usage("--event-service must be one of %s, got %q", modes(), f.events)
	}
	return nil
}

// demoRun is what the parts of a running demo share.
type demoRun struct {
	commands
	demoFlags
	event  string
	key    string // file
	secret string // of the shop
	events string // address of the Event Service
	entry  string // address of the load balancer, in which users enter
}

func (c commands) runDemo(cmd *cobra.Command, f demoFlags) error {
	if err := f.validate(); err != nil {
		return err
	}
	d := &demoRun{commands: c, demoFlags: f, event: "demo-" + strings.ToLower(rand.Text()[:6]), secret: rand.Text()}
	service := sim.New(map[string]int64{d.event: int64(f.seats)})
	service.Set(sim.Mode(f.events))
	var err error
	var stopEvents, stopEntry func()
	if d.events, stopEvents, err = listen(cmd.Context(), service, c.h.Err()); err != nil {
		return err
	}
	defer stopEvents()
	balancer := &lateHandler{}
	if d.entry, stopEntry, err = listen(cmd.Context(), balancer, c.h.Err()); err != nil {
		return err
	}
	defer stopEntry()
	return app.RunDemo(c.h, cmd, app.Demo[demo.Report]{
		DemoFlags: f.DemoFlags, Off: []string{"kafka", "promotion"},
		Settings: func(dir string) (map[string]any, error) {
			d.key = filepath.Join(dir, "key.pem")
			set := d.settings("broker", "dispatcher")
			set["plugins.deadletter.store.dsn"] = ""
			set["plugins.web.listen"] = "127.0.0.1:0"
			return set, token.CreateKey(d.key)
		},
		Run: func(ctx context.Context, p *app.Processes) (demo.Report, error) {
			return d.crowd(ctx, p, service, balancer)
		},
		Text: writeReport,
		Verdict: func(r demo.Report) error {
			switch {
			case !r.OK():
				return app.Bad("the waiting room broke a rule")
			case !f.noKill && r.Killed < 2:
				return app.Bad("the visits were over before the processes were killed: increase --users")
			}
			return nil
		},
		Next: fmt.Sprintf("`%[1]s room demo --keep` keeps it running, and `%[1]s room open --help` opens a room of your own.", c.h.Program()),
	})
}

// settings are those of a process with these roles.
func (d *demoRun) settings(roles ...string) map[string]any {
	set := map[string]any{
		"plugins.token.keys":          []any{map[string]any{"kid": "demo", "file": d.key}},
		"plugins.web.auth.header":     demo.UserHeader,
		"plugins.web.drain_window":    "1s",
		"plugins.web.trusted_proxies": []string{"127.0.0.1"},
	}
	for key, value := range map[string]any{
		"enabled": true, "roles": roles, "event_service.url": d.events, "shop_tokens.demo": d.secret, "entry_url": d.entry + "/shop?token={token}",
		"promote_interval": "500ms", "broadcast_interval": "500ms", "token_ttl": demoTokenTTL.String(), "ready_ttl": "15s", "grace": "10s", "seen_interval": "1s",
	} {
		set["plugins.waitingroom."+key] = value
	}
	return set
}

// crowd starts the other processes and sends the crowd.
func (d *demoRun) crowd(ctx context.Context, processes *app.Processes, service *sim.Service, balancer *lateHandler) (demo.Report, error) {
	rooms, server := d.Rooms()
	if err := server.Start(ctx); err != nil {
		return demo.Report{}, err
	}
	defer func() { _ = server.Stop(context.WithoutCancel(ctx)) }()
	brokers := []string{d.Addr()}
	var kills []func() error
	if !d.noKill {
		address, broker, err := d.start(ctx, processes, "broker")
		if err != nil {
			return demo.Report{}, err
		}
		_, dispatcher, err := d.start(ctx, processes, "dispatcher")
		if err != nil {
			return demo.Report{}, err
		}
		brokers, kills = append(brokers, address), []func() error{broker.Kill, dispatcher.Kill}
	}
	shop, err := shopmiddleware.New(shopmiddleware.Options{URL: d.entry, ShopToken: d.secret, Event: func(*http.Request) string { return d.event }})
	if err != nil {
		return demo.Report{}, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", demo.Balancer(brokers...))
	mux.Handle("GET /shop", shop.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entry, _ := shopmiddleware.EntryOf(r.Context())
		fmt.Fprintf(w, "Welcome to the shop, %s.\n", entry.UserID)
	})))
	balancer.set(mux)
	drawn, err := demo.Draw(ctx, demo.DrawOptions{
		Event: "draw-of-" + d.event, Rooms: rooms, By: "demo", URL: d.entry, Client: &http.Client{}, File: filepath.Join(filepath.Dir(d.key), "draw.txt"),
	})
	if err != nil {
		return demo.Report{}, err
	}
	concurrency := int64(d.concurrency)
	by := room.Change{Verb: room.Open, By: "demo", Why: "demo", Concurrency: &concurrency}
	if _, err := rooms.Control(ctx, d.event, by); err != nil {
		return demo.Report{}, err
	}
	recovered := time.AfterFunc(demoOutage, func() { service.Set(sim.Healthy) })
	defer recovered.Stop()
	fmt.Fprintf(d.h.Err(), "%s for %s, %s at the same time. The Event Service is %s at first. Wait with them in a browser:\n  %s/rooms/%s\n",
		app.Plural(int64(d.users), "user"), app.Plural(int64(d.seats), "seat"), app.Thousands(concurrency), d.demoFlags.events, d.entry, d.event)
	bar := d.h.Progress(int64(d.users), "users served")
	defer bar.Done()
	report, err := demo.Run(ctx, demo.Options{
		Event: d.event, Users: d.users, Checker: checker.New(checker.Options{TokenTTL: demoTokenTTL}), URL: d.entry, Client: &http.Client{Transport: &http.Transport{}}, Gate: shop,
		Status: func(ctx context.Context) (room.Status, error) { return rooms.RoomStatus(ctx, d.event) },
		Close: func(ctx context.Context) error {
			_, err := rooms.Control(ctx, d.event, room.Change{Verb: room.Close, By: by.By, Why: "sold out"})
			return err
		},
		Kills: kills, Progress: bar.Set,
	})
	if report.Drawn = drawn; drawn.Problem != "" {
		report.Problems = append(report.Problems, drawn.Problem)
	}
	return report, err
}

// start starts a process with a role, and waits until it is ready.
func (d *demoRun) start(ctx context.Context, processes *app.Processes, role string) (address string, p *app.Process, err error) {
	settings := d.Redis().Overrides()
	maps.Copy(settings, d.settings(role))
	address, err = freeAddress(ctx)
	if err != nil {
		return "", nil, err
	}
	operations, err := freeAddress(ctx)
	if err != nil {
		return "", nil, err
	}
	var keys []any // the embedded environment has a key of its own
	for _, k := range d.Keys() {
		keys = append(keys, map[string]any{"kid": k.Kid, "file": k.File})
	}
	settings["plugins.token.keys"] = keys
	settings["plugins.web.listen"], settings["plugins.telemetry.listen"] = address, operations
	settings["instance_id"] = role + "-of-" + d.event
	if p, err = processes.Start(ctx, role, settings); err != nil {
		return "", nil, fmt.Errorf("demo: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, demoStart)
	defer cancel()
	for !ready(ctx, "http://"+operations+"/readyz") {
		if !loop.Sleep(ctx, 100*time.Millisecond) {
			return "", nil, fmt.Errorf("demo: the %s is not ready: %w", role, context.Cause(ctx))
		}
	}
	return address, p, nil
}

func ready(ctx context.Context, address string) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return false
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}
