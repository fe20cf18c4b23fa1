package operate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// WorkTeller is what the chain of a process offers (pipeline.Registry.Offer): what this instance does of a route. It
// is safe for concurrent use.
type WorkTeller interface {
	Work(route string) pipeline.RouteWork
}

// WorkReader is offered by the plugin through which instances tell what they do.
type WorkReader interface {
	// Kind is that of the sources on the same server, with which a report shares its connection.
	Kind() string
	// ReadWork returns what each instance that runs has told last, and those that are gone. more says that there are
	// others. An error that wraps pipeline.ErrUnavailable says that the server does not answer.
	ReadWork(context.Context) (told []InstanceWork, more bool, err error)
}

// InstanceWork is what one instance has told.
type InstanceWork struct {
	Instance string
	// Routes is the work by route. Nil: the instance does not tell it, such as one that has just started.
	Routes map[string]pipeline.RouteWork
	// Silent is how long ago the instance told it, if it should have told it again since. Zero: it is up to date.
	Silent time.Duration
	// Gone is when the instance was seen last, if it ended a short time ago without having been stopped. Zero: it runs.
	Gone time.Time
}

// WorkHere returns what this process does, by route. It is nil where no routes run, as in a command.
func WorkHere(reg *pipeline.Registry) map[string]pipeline.RouteWork {
	tellers := pipeline.Offers[WorkTeller](reg)
	if len(tellers) == 0 {
		return nil
	}
	all := map[string]pipeline.RouteWork{}
	for _, r := range reg.Routes() {
		for _, t := range tellers {
			all[r.Name] = addWork(all[r.Name], t.Work(r.Name))
		}
	}
	return all
}

// Work is what instances say about their work on routes. The zero value is that of no instance.
type Work struct {
	Routes map[string]pipeline.RouteWork // added up
	Known  int                           // instances that are added up
	// Unknown says why this is not the work of all instances that run, in words. Empty: it is.
	Unknown string
	// RatesUnknown says why the messages per second are not those of all instances that run. Empty: they are.
	RatesUnknown string
	// Gone are the instances that ended a short time ago without having been stopped.
	Gone []Check
}

// goneCheck says that an instance is gone, and what that means.
func goneCheck(instance string, last, now time.Time) Check {
	return Check{
		Name: "instance " + instance, Level: Warn,
		Text:   "is gone without having been stopped; its last sign of life was at " + last.UTC().Format(time.RFC3339) + ago(now.Sub(last)) + ". What it had taken comes to the others when its leases end",
		Remedy: "read the end of its log, and start it again if nothing else does",
	}
}

// workKind returns the kind of the server through which instances tell what they do, or nothing.
func workKind(reg *pipeline.Registry) string {
	if readers := pipeline.Offers[WorkReader](reg); len(readers) > 0 {
		return readers[0].Kind()
	}
	return ""
}

// ReadWork returns the work of all instances as far as it is known. That of this process is up to date, and that
// of others as they told it last.
func ReadWork(ctx context.Context, reg *pipeline.Registry) (Work, error) {
	told := map[string]InstanceWork{}
	var w Work
	var err error
	readers, more := pipeline.Offers[WorkReader](reg), false
	if len(readers) == 0 {
		w.Unknown = "without the plugin redis, instances tell each other nothing"
	} else {
		var all []InstanceWork
		err = recovered(func() (err error) {
			all, more, err = readers[0].ReadWork(ctx)
			return err
		})
		for _, one := range all {
			if !one.Gone.IsZero() {
				w.Gone = append(w.Gone, goneCheck(one.Instance, one.Gone, time.Now()))
				continue
			}
			told[one.Instance] = one
		}
	}
	if here := WorkHere(reg); here != nil {
		told[reg.Env().Instance] = InstanceWork{Routes: here}
		if len(readers) == 0 {
			w.Unknown += ", so only this one is known"
		}
	}
	var silent, unrated []string
	for _, instance := range slices.Sorted(maps.Keys(told)) {
		one := told[instance]
		switch {
		case one.Routes == nil:
			silent = append(silent, instance)
			continue
		case one.Silent > 0:
			silent = append(silent, fmt.Sprintf("%s (for %s)", instance, short(one.Silent)))
			one.Routes = errorsOf(one.Routes)
		default:
			w.Known++
			if !hasRate(one.Routes) {
				unrated = append(unrated, instance)
			}
		}
		w.add(instance, one.Routes)
	}
	switch {
	case err != nil:
		w.Unknown = logs.OneLine(err.Error())
	case len(silent) > 0:
		w.Unknown = fmt.Sprintf("%s told nothing: %s", Have(len(silent), "instance"), named(silent))
	case more:
		w.Unknown = fmt.Sprintf("only the latest %s read", Are(w.Known, "instance"))
	}
	if w.RatesUnknown = w.Unknown; w.RatesUnknown == "" && len(unrated) > 0 {
		w.RatesUnknown = fmt.Sprintf("%s no rate yet: %s", Have(len(unrated), "instance"), named(unrated))
	}
	return w, err
}

// namedInstances is the number of instances that a sentence names.
const namedInstances = 3

func named(instances []string) string {
	return strings.Join(instances[:min(len(instances), namedInstances)], ", ")
}

// errorsOf returns what stays true of an instance that tells nothing any more: the last errors.
func errorsOf(routes map[string]pipeline.RouteWork) map[string]pipeline.RouteWork {
	kept := map[string]pipeline.RouteWork{}
	for route, one := range routes {
		kept[route] = pipeline.RouteWork{LastError: one.LastError}
	}
	return kept
}

// hasRate reports whether an instance knows how fast it works. One without routes has nothing to tell.
func hasRate(routes map[string]pipeline.RouteWork) bool {
	for _, one := range routes {
		if one.DonePerSecond != nil {
			return true
		}
	}
	return len(routes) == 0
}

func (w *Work) add(instance string, routes map[string]pipeline.RouteWork) {
	if w.Routes == nil {
		w.Routes = map[string]pipeline.RouteWork{}
	}
	for route, one := range routes {
		if one.LastError != nil {
			of := *one.LastError
			of.Instance = instance
			one.LastError = &of
		}
		w.Routes[route] = addWork(w.Routes[route], one)
	}
}

// addWork adds two works up. The later error is the last one.
func addWork(a, b pipeline.RouteWork) pipeline.RouteWork {
	a.DonePerSecond, a.FailedPerSecond = sum(a.DonePerSecond, b.DonePerSecond), sum(a.FailedPerSecond, b.FailedPerSecond)
	a.InFlight, a.Done, a.Failed = a.InFlight+b.InFlight, a.Done+b.Done, a.Failed+b.Failed
	if a.LastError == nil || b.LastError != nil && b.LastError.At.After(a.LastError.At) {
		a.LastError = b.LastError
	}
	return a
}

// SumOf adds the work on all routes of one instance up.
func SumOf(routes map[string]pipeline.RouteWork) (sum pipeline.RouteWork) {
	for _, one := range routes {
		sum = addWork(sum, one)
	}
	return sum
}

// of adds the work on routes up.
func (w Work) of(routes ...string) (sum pipeline.RouteWork) {
	for _, r := range routes {
		sum = addWork(sum, w.Routes[r])
	}
	return sum
}

// Again reports whether messages of the route may wait to be tried again after the last error, so that it says why.
func (s RouteStatus) Again() bool {
	return s.LastError != nil && (count(s.Retries) > 0 || s.Oldest != nil && s.Oldest.Before(s.LastError.At))
}

func count(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// Sentence says why a message of a route is tried again, such as "orders/4@17 failed (timeout, 3s ago): no answer".
func Sentence(e pipeline.LastError, now time.Time) string {
	text := e.Record + " failed"
	if e.Record == "" {
		text = "a message failed"
	}
	text += " (" + e.Class + ago(now.Sub(e.At)) + ")"
	if e.Instance != "" {
		text += " on " + e.Instance
	}
	return text + ": " + e.Text
}
