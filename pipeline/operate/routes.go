package operate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// RouteStatus is the state of one route in the report of Routes. A field that is null is not known.
type RouteStatus struct {
	Route string            `json:"route"`
	From  pipeline.Endpoint `json:"from"`
	// DonePerSecond and FailedPerSecond are the messages per second that instances handle, and that fail, retries
	// included. They are the sum over the instances that have told it.
	DonePerSecond   *float64 `json:"done_per_second"`
	FailedPerSecond *float64 `json:"failed_per_second"`

	Waiting     *int64     `json:"waiting"`
	InFlight    *int64     `json:"in_flight"`
	Oldest      *time.Time `json:"oldest"`
	OldestAt    string     `json:"oldest_at,omitempty"` // its topic/partition@offset, or stream@id
	Retries     *int64     `json:"retries"`             // records that wait in the retry topic, also of what was done by another way meanwhile
	NextDue     *time.Time `json:"next_due"`
	DeadLetters *int64     `json:"dead_letters"` // that wait for a person
	// LastError is that of the last message that failed and is tried again, on any instance that runs and has told it.
	LastError *pipeline.LastError `json:"last_error"`
	// RetryTopic is set for a route that reads a retry topic: what waits there is in Retries.
	RetryTopic bool `json:"retry_topic,omitempty"`
	// Streams are those of a route that finds them while it runs, such as one per campaign.
	Streams *StreamBacklogs `json:"streams,omitempty"`
}

// RoutesStatus is the value of the report of Routes.
type RoutesStatus struct {
	Routes []RouteStatus `json:"routes"`
	Checks []Check       `json:"checks"` // what could not be read
	// Conditions are those of the instance on this machine, without what is in order. Null: none runs, or it
	// does not tell them.
	Conditions []Condition `json:"conditions"`
	// Paused are the orders of operators that pause routes, also of those that no instance runs.
	Paused []Condition `json:"paused,omitempty"`
	// Unknown says why last errors, and what is in flight of a Kafka topic, are not those of all instances. Empty: they are.
	Unknown string `json:"instances_unknown,omitempty"`
	// RatesUnknown says why the messages per second are not those of all instances. Empty: they are.
	RatesUnknown string `json:"rates_unknown,omitempty"`
	// Gone are the instances that ended a short time ago without having been stopped.
	Gone []Check `json:"instances_gone,omitempty"`
}

// Routes returns the report about the routes of all plugins: what waits, what is in flight, what
// waits for a retry, and the dead letters. The route that reads a retry topic is part of the route that
// retries into it, unless several do.
func Routes() Report {
	return Report{
		About: About{
			Name:  "routes",
			Short: "Show the rate, lag, retries and dead letters of each route",
			Long: `Show how fast each route works, and what it has not done yet, over all instances.

DONE/S are the messages per second that were handled, and FAILED/S those that failed, counted each time, over up to 15 seconds. Each instance measures its own, and tells it in Redis every five seconds. They are summed without an instance that has just started, or that has told nothing for ten seconds, and a line below the table names it. WAITING are messages that were not handled: the lag of a consumer group in Kafka, which includes those in flight, or the entries of a Redis stream that no consumer has got. IN FLIGHT are entries of a Redis stream that a consumer has got and not acknowledged, and what the instances say that they have of a Kafka topic. OLDEST is the age of the oldest message of both, whose place stands below if it is older than a minute. RETRIES are records that wait in the retry topic, also of work that a ledger has done by another way meanwhile, and DUE IN says when the next one is due. A retry topic of several routes has a row of its own. DEAD are stored dead letters that wait for a person. A dash is a number that the server does not tell. A route that finds its streams while it runs, such as one per campaign or event, has a second table with those that are furthest behind.

The lines below the table say why messages of a route are tried again: the last error, the message that had it, and the instance, as the instances tell it in Redis every five seconds. Then follow instances that ended within the last quarter of an hour without having been stopped, routes that are paused, and what the instance on this machine knows: far sides that do not work, effects that are paused, and what waits for a person. One that has failed makes the exit code 1.

It needs no running instance for the numbers, and reads without a consumer group.`,
			Examples: []string{"routes --config settings.yaml", "routes --route orders --json"},
			Fields:   []Field{{Name: "route", Help: "only the route of this `name`"}},
		},
		Read: readRoutes,
	}
}

// stuckAfter is the age from which the report of all routes says where the oldest message of a route is.
const stuckAfter = time.Minute

func readRoutes(ctx context.Context, reg *pipeline.Registry, in Input) (Answer, error) {
	routes, names := reg.Routes(), []string(nil)
	for _, r := range routes {
		names = append(names, r.Name)
	}
	only := in.Text("route")
	if only != "" && !slices.Contains(names, only) {
		return Answer{}, &InputError{Problem: fmt.Sprintf("no route has the name %q; the routes are %s", only, strings.Join(names, ", ")), Field: "route"}
	}
	if only != "" {
		routes = slices.DeleteFunc(slices.Clone(routes), func(r pipeline.Route) bool {
			return r.Name != only && !slices.Contains(reg.RetriesInto(place(r.From.Describe())), only)
		})
	}
	var work Work
	var orders pauses
	var dead map[string]int64
	var notCounted error
	var told conditionsOfInstance
	var beside sync.WaitGroup // at the same time, because one server that does not answer takes all of the time
	beside.Go(func() { dead, notCounted = CountDead(ctx, reg) })
	beside.Go(func() { told = readConditions(ctx, reg) })
	backlogs, problems := measure(ctx, routes, workKind(reg), func(ctx context.Context, err error) {
		if err != nil {
			work.Unknown = logs.OneLine(err.Error())
			work.RatesUnknown = work.Unknown
			orders.err = err
			return
		}
		bounded, cancel := context.WithTimeout(ctx, instancesLimit)
		defer cancel()
		work, _ = ReadWork(bounded, reg) // why it is not known stands in it
		orders = readPauses(bounded, reg)
	})
	beside.Wait()
	if notCounted != nil {
		problems = append(problems, fmt.Errorf("dead letters: %w", notCounted))
	}
	value := RoutesStatus{Routes: []RouteStatus{}, Checks: []Check{}, Unknown: work.Unknown, RatesUnknown: work.RatesUnknown, Gone: work.Gone}
	table := Table{Columns: []string{"ROUTE", "DONE/S", "FAILED/S", "WAITING", "IN FLIGHT", "OLDEST", "RETRIES", "DUE IN", "DEAD"}, Empty: "No routes."}
	now := time.Now()
	for _, status := range StatusOf(reg, backlogs, dead, work) {
		if only == "" || status.Route == only {
			value.Routes = append(value.Routes, status)
			table.Rows = append(table.Rows, status.row(now))
		}
	}
	if only != "" && len(value.Routes) == 0 { // it reads a retry topic itself
		i := slices.IndexFunc(routes, func(r pipeline.Route) bool { return r.Name == only })
		status := statusOf(reg, routes[i], backlogs, dead, work)
		value.Routes, table.Rows = append(value.Routes, status), append(table.Rows, status.row(now))
	}
	answer := Answer{Tables: []Table{table}, Checks: slices.Clone(work.Gone)}
	answer.addStreams(value.Routes, now)
	for _, r := range value.Routes {
		if r.Oldest != nil && r.OldestAt != "" && (only != "" || now.Sub(*r.Oldest) >= stuckAfter) {
			answer.Notes = append(answer.Notes, fmt.Sprintf("The oldest message of %s is %s, published %s, %s ago.",
				r.Route, r.OldestAt, r.Oldest.Format(time.RFC3339), short(now.Sub(*r.Oldest))))
		}
	}
	answer.addErrors(value, only != "", now)
	answer.addConditions(reg, &value, only, orders, told)
	for _, p := range problems {
		check := Check{Name: "not known", Level: Fail, Text: logs.OneLine(p.Error())}
		value.Checks, answer.Checks = append(value.Checks, check), append(answer.Checks, check)
	}
	answer.Value = value
	for _, p := range problems {
		if errors.Is(p, pipeline.ErrUnavailable) {
			return answer, fmt.Errorf("%w: not all of the numbers are known", pipeline.ErrUnavailable)
		}
	}
	return answer, nil
}

// Backlogs reads what the routes whose sources have one kind, such as kafka, have not done yet. They share
// a connection. A route whose backlog could not be read, or is not known to its transport, has none.
func Backlogs(ctx context.Context, reg *pipeline.Registry, kind string) (backlogs map[string]Backlog, err error) {
	backlogs = map[string]Backlog{}
	var routes []pipeline.Route
	for _, r := range reg.Routes() {
		if r.From.Describe().Kind == kind {
			routes = append(routes, r)
		}
	}
	measureKind(ctx, routes, func(route string, b Backlog, wrong error) {
		if wrong != nil {
			err = errors.Join(err, fmt.Errorf("route %s: %w", route, wrong))
			return
		}
		backlogs[route] = b
	}, func(context.Context, error) {})
	return backlogs, err
}

// StatusOf returns the state of each route from what Backlogs, CountDead and ReadWork have read. A route without a
// backlog, and all dead letters of a nil map, are not known. The route that reads a retry topic is part of
// the route that retries into it. If several do, it has a state of its own, and what waits there is counted once.
func StatusOf(reg *pipeline.Registry, backlogs map[string]Backlog, dead map[string]int64, work Work) (all []RouteStatus) {
	for _, r := range reg.Routes() {
		if hasStatus(reg, r) {
			all = append(all, statusOf(reg, r, backlogs, dead, work))
		}
	}
	return all
}

// hasStatus reports whether a route is no part of another one.
func hasStatus(reg *pipeline.Registry, r pipeline.Route) bool {
	return !isRetry(reg, r) || len(retried(reg, place(r.From.Describe()))) > 1
}

// Reported returns the route whose status has the numbers of a route: the one that retries into what it reads, or itself.
func Reported(reg *pipeline.Registry, route string) string {
	for _, r := range reg.Routes() {
		if r.Name != route && retriesOf(reg, r) == route {
			return r.Name
		}
	}
	return route
}

// retriesOf returns the route that reads the retry topic of r and is part of it, which may be r. Empty: there is none.
func retriesOf(reg *pipeline.Registry, r pipeline.Route) (reader string) {
	at := retryPlace(r)
	if r.Policy.Retry.To == nil || !isRetry(reg, r) && len(retried(reg, at)) > 1 {
		return ""
	}
	for _, other := range reg.Routes() {
		if place(other.From.Describe()) == at {
			reader = other.Name
		}
	}
	return reader
}

func statusOf(reg *pipeline.Registry, r pipeline.Route, backlogs map[string]Backlog, dead map[string]int64, work Work) RouteStatus {
	own := backlogs[r.Name]
	status := RouteStatus{Route: r.Name, From: r.From.Describe(), Waiting: own.Waiting, InFlight: own.InFlight, Oldest: timeOf(own.Oldest), OldestAt: own.OldestAt, Streams: own.Streams, RetryTopic: isRetry(reg, r)}
	if status.RetryTopic && own.NotDue == nil {
		status.Waiting = nil // they are retries, and nobody tells which of them are due
	}
	reader := retriesOf(reg, r)
	switch {
	case r.Policy.Retry.To == nil:
		status.Retries = new(int64)
	case reader != "":
		again := backlogs[reader]
		status.Retries, status.NextDue = sum(again.Waiting, again.NotDue), timeOf(again.NextDue)
	}
	if dead != nil {
		n := dead[r.Name]
		if reader != "" && reader != r.Name {
			n += dead[reader]
		}
		status.DeadLetters = &n
	}
	alone := work.of(r.Name)
	all := alone
	if reader != "" && reader != r.Name {
		all = work.of(r.Name, reader)
	}
	status.LastError, status.DonePerSecond, status.FailedPerSecond = all.LastError, all.DonePerSecond, all.FailedPerSecond
	if status.InFlight == nil && status.Waiting != nil && work.Known > 0 && work.Unknown == "" {
		status.InFlight = &alone.InFlight // the server does not tell it, and the instances do
	}
	return status
}

// place is an endpoint without its group, which a sink does not have.
func place(e pipeline.Endpoint) pipeline.Endpoint {
	return pipeline.Endpoint{Kind: e.Kind, Name: e.Name}
}

func retryPlace(r pipeline.Route) pipeline.Endpoint {
	if r.Policy.Retry.To == nil {
		return pipeline.Endpoint{}
	}
	return place(r.Policy.Retry.To.Describe())
}

// retried returns the routes that retry into a topic and do not read it.
func retried(reg *pipeline.Registry, topic pipeline.Endpoint) []string {
	names := reg.RetriesInto(topic)
	for _, r := range reg.Routes() {
		if place(r.From.Describe()) == topic {
			names = slices.DeleteFunc(names, func(name string) bool { return name == r.Name })
		}
	}
	return names
}

// isRetry reports whether r reads a retry topic.
func isRetry(reg *pipeline.Registry, r pipeline.Route) bool {
	return len(reg.RetriesInto(place(r.From.Describe()))) > 0
}

// measure reads the backlogs by route. The sources of one kind share a connection and are read one
// after the other, and a server that does not answer is asked once. beside is called with the connection of
// one kind, or with the error of connecting.
func measure(ctx context.Context, routes []pipeline.Route, besideKind string, beside func(ctx context.Context, err error)) (backlogs map[string]Backlog, problems []error) {
	byKind := map[string][]pipeline.Route{besideKind: nil}
	for _, r := range routes {
		kind := r.From.Describe().Kind
		byKind[kind] = append(byKind[kind], r)
	}
	backlogs = map[string]Backlog{}
	var mu sync.Mutex
	var reading sync.WaitGroup
	for kind, of := range byKind {
		then := beside
		if kind != besideKind {
			then = func(context.Context, error) {}
		}
		reading.Go(func() {
			measureKind(ctx, of, func(route string, b Backlog, err error) {
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					problems = append(problems, fmt.Errorf("route %s: %w", route, err))
				} else {
					backlogs[route] = b
				}
			}, then)
		})
	}
	reading.Wait()
	sorted.By(problems, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return backlogs, problems
}

// measureKind reads the backlogs of routes whose sources have one kind, until the server does not answer. It calls then
// with the connection that they share, or with the error of connecting.
func measureKind(ctx context.Context, routes []pipeline.Route, note func(route string, b Backlog, err error), then func(ctx context.Context, err error)) {
	isConnecting := func(r pipeline.Route) bool { _, ok := r.From.(Connecting); return ok }
	if i := slices.IndexFunc(routes, isConnecting); i >= 0 {
		connected, closeIt, err := connect(ctx, routes[i].From.(Connecting))
		if err != nil {
			note(routes[i].Name, Backlog{}, err)
			then(ctx, err)
			return
		}
		defer closeIt()
		ctx = connected
	}
	defer func() { then(ctx, nil) }()
	for _, r := range routes {
		source, ok := r.From.(Measured)
		if !ok {
			continue
		}
		var b Backlog
		err := recovered(func() (err error) {
			b, err = source.Backlog(ctx)
			return err
		})
		note(r.Name, b, err)
		if errors.Is(err, pipeline.ErrUnavailable) {
			return
		}
	}
}

func connect(ctx context.Context, to Connecting) (connected context.Context, closeIt func(), err error) {
	defer catch(&err)
	return to.Connect(ctx)
}

// CountDead adds up, by route, the dead letters that wait for a person in all plugins that store some. It
// returns nil if no plugin does, and with an error, because then the numbers are not known.
func CountDead(ctx context.Context, reg *pipeline.Registry) (counts map[string]int64, err error) {
	counts, known := map[string]int64{}, false
	for _, d := range pipeline.Offers[DeadLetters](reg) {
		var byRoute map[string]int64
		var ok bool
		wrong := recovered(func() (err error) {
			byRoute, ok, err = d.WaitingByRoute(ctx)
			return err
		})
		known, err = known || ok, errors.Join(err, wrong)
		for route, n := range byRoute {
			counts[route] += n
		}
	}
	if err != nil || !known {
		return nil, err
	}
	return counts, nil
}

// timeOf returns nil for a time that is not known, and for one that JSON can't have: a foreign record
// may have any.
func timeOf(t time.Time) *time.Time {
	t = t.UTC()
	if t.IsZero() || t.Year() < 0 || t.Year() > 9999 {
		return nil
	}
	return &t
}

// sum returns the sum of the numbers that are known, or nil.
func sum[N int64 | float64](numbers ...*N) *N {
	var total *N
	for _, n := range numbers {
		if n != nil {
			if total == nil {
				total = new(N)
			}
			*total += *n
		}
	}
	return total
}

// shownStreams bounds the streams of a route in the table. --json has more of them.
const shownStreams = 10

// addStreams adds the table of the streams that have something to do, and what it leaves out.
func (a *Answer) addStreams(routes []RouteStatus, now time.Time) {
	table := Table{Columns: []string{"ROUTE", "STREAM", "WAITING", "IN FLIGHT", "OLDEST"}}
	for _, r := range routes {
		if r.Streams == nil {
			continue
		}
		rows := 0
		for _, s := range r.Streams.Worst {
			if s.messages() == 0 && s.Waiting != nil || rows == shownStreams {
				continue
			}
			oldest := "-"
			if s.Oldest != nil {
				oldest = short(now.Sub(*s.Oldest))
			}
			table.Rows = append(table.Rows, []string{r.Route, s.Stream, number(s.Waiting), number(s.InFlight), oldest})
			rows++
		}
		if more := r.Streams.Total - rows; more > 0 && rows == shownStreams {
			a.Notes = append(a.Notes, fmt.Sprintf("%s has %d streams; the %d that are furthest behind are shown, and --json has up to %d.", r.Route, r.Streams.Total, rows, worstStreams))
		}
	}
	if len(table.Rows) > 0 {
		a.Tables = append(a.Tables, table)
	}
}

// instancesLimit bounds the wait for what instances tell.
const instancesLimit = 2 * time.Second

// addErrors says why messages are tried again: of the routes where some may wait for it, or of one that was asked for.
// It says, too, of which instances this and the rates are not known.
func (a *Answer) addErrors(value RoutesStatus, asked bool, now time.Time) {
	waits, rated := false, false
	for _, r := range value.Routes {
		waits, rated = waits || count(r.Retries) > 0, rated || r.DonePerSecond != nil
		if r.LastError != nil && (asked || r.Again()) {
			a.Notes = append(a.Notes, fmt.Sprintf("Last error of %s: %s", r.Route, Sentence(*r.LastError, now)))
		}
	}
	switch {
	case waits && value.Unknown != "":
		a.Notes = append(a.Notes, "Rates, and why messages are tried again, are not known of all instances: "+value.Unknown+".")
	case rated && value.RatesUnknown != "":
		a.Notes = append(a.Notes, "Rates are not known of all instances: "+value.RatesUnknown+".")
	}
}

func number(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

// PerSecond writes a rate: with a decimal where it is low, and otherwise as whole writes its rounded number.
func PerSecond(rate float64, whole func(int64) string) string {
	if rate > 0 && math.Round(rate*10) < 100 {
		return strconv.FormatFloat(rate, 'f', 1, 64)
	}
	return whole(int64(math.Round(rate)))
}

func perSecond(rate *float64) string {
	if rate == nil {
		return number(nil)
	}
	return PerSecond(*rate, func(n int64) string { return number(&n) })
}

func (s RouteStatus) row(now time.Time) []string {
	oldest, due := "-", "-"
	if s.Oldest != nil {
		oldest = short(now.Sub(*s.Oldest))
	}
	if s.NextDue != nil {
		due = short(s.NextDue.Sub(now))
	}
	return []string{s.Route, perSecond(s.DonePerSecond), perSecond(s.FailedPerSecond), number(s.Waiting), number(s.InFlight), oldest, number(s.Retries), due, number(s.DeadLetters)}
}

// short rounds a duration to what fits into a column. What has passed is now.
func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now"
	case d < time.Hour:
		return d.Round(time.Second).String()
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}
