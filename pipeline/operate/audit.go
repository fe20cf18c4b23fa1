package operate

import (
	"context"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// Auditor is what a plugin offers (pipeline.Registry.Offer) that records what operators do. AuditLogs is called
// after all plugins were registered, as often as the logs are read, and opens nothing. It is safe for concurrent use. The console shows the logs on its page Audit.
type Auditor interface {
	AuditLogs() []AuditLog
}

// Recorder is what a plugin offers (pipeline.Registry.Offer) that keeps the audit of things whose own server can't, such
// as a consumer group of Kafka.
type Recorder interface {
	// RecordChange returns when the change is stored. The place gives it its At and ID.
	RecordChange(ctx context.Context, c Change) error
}

// Recording returns a context with which calls of Record share a connection, if the plugin that stores the changes has
// a method Connect as Connecting does. The caller calls closeIt after the last of them.
func Recording(ctx context.Context, reg *pipeline.Registry) (connected context.Context, closeIt func(), err error) {
	if recorders := pipeline.Offers[Recorder](reg); len(recorders) > 0 {
		if to, ok := recorders[0].(interface {
			Connect(context.Context) (context.Context, func(), error)
		}); ok {
			return to.Connect(ctx)
		}
	}
	return ctx, func() {}, nil
}

// The outcomes of a change that is recorded before it is made.
const (
	OutcomeBegun  = "begun"
	OutcomeDone   = "done"
	OutcomeFailed = "failed"
)

// Record stores a change with the first plugin that is a Recorder, with the Outcome begun, and then makes it, which has
// a row of its own with the Outcome done or failed. recorded is false when no plugin is one, so that only the log has
// the change. unrecorded is why a row was not stored: the change was not made, unless failed has the error of making it.
// What was made although its second row was not stored stays begun.
func Record(ctx context.Context, reg *pipeline.Registry, c Change, do func() error) (recorded bool, failed, unrecorded error) {
	record := func(context.Context) error { return nil }
	if recorders := pipeline.Offers[Recorder](reg); len(recorders) > 0 {
		recorded, record = true, func(ctx context.Context) error { return recorders[0].RecordChange(ctx, c) }
	}
	c.Outcome = OutcomeBegun
	if err := record(ctx); err != nil {
		return recorded, nil, err
	}
	if failed = do(); failed == nil {
		c.Outcome, c.Detail = OutcomeDone, ""
		_ = record(context.WithoutCancel(ctx)) // the first row says who and why
		return recorded, nil, nil
	}
	c.Outcome, c.Detail = OutcomeFailed, logs.OneLine(failed.Error())
	return recorded, failed, record(context.WithoutCancel(ctx))
}

// AuditLog is one place with changes of operators. Each stands where the changed thing lives, so that a
// change and its record share a transaction where the server has any.
type AuditLog struct {
	// Name is unique in the process: lower-case letters, digits and -, because it is a part of addresses.
	Name string
	// Title names what was changed, such as Dead letters.
	Title string
	// Note says what is not in it, such as how long it is kept. Empty: it has everything.
	Note string
	// Recent returns the changes that the filter selects, at most limit, the newest first. It is safe for
	// concurrent use. FilterAudit is its body for a place that can't filter by itself.
	Recent func(ctx context.Context, f AuditFilter, limit int) (AuditPage, error)
}

// AuditPage is a part of an AuditLog.
type AuditPage struct {
	Changes []Change
	// Next is the Before of the page that follows, with older changes. Empty: there are none.
	Next string
}

// AuditFilter selects changes. An empty text selects all, and otherwise the text is sought in upper and lower
// case alike.
type AuditFilter struct {
	Who, Action, Subject string
	// Before is the Change.ID or the AuditPage.Next that the answer begins after. Empty: the newest change.
	Before string
}

// Empty reports whether the filter selects all changes.
func (f AuditFilter) Empty() bool { return f.Who == "" && f.Action == "" && f.Subject == "" }

// Matches reports whether the filter selects a change.
func (f AuditFilter) Matches(c Change) bool {
	has := func(text, part string) bool { return strings.Contains(strings.ToLower(text), strings.ToLower(part)) }
	return has(c.Who, f.Who) && has(c.Action, f.Action) && has(c.Subject, f.Subject)
}

// Change is what an operator did.
type Change struct {
	// ID is the place of the change in its log, for AuditFilter.Before.
	ID string
	At time.Time
	// Who is the text that was recorded, which AuthorOf reads: the person, where the change came from, and the role.
	Who string
	// Why is the reason.
	Why string
	// Action is what was done, such as replay.
	Action string
	// Subject is what was changed, such as the id of a dead letter.
	Subject string
	// Outcome is how it ended. Empty: the place does not record it.
	Outcome string
	// Detail is what else is recorded. It may have any content.
	Detail string
}

// The faces of the pipeline through which a person changes something.
const (
	FaceConsole = "console"
	FaceAPI     = "API"
	FaceCommand = "command"
)

// Schedule is the Change.Who of what happens by itself at its time, such as a room that opens.
const Schedule = "schedule"

// Author is who changed something. Its String is what an audit records.
type Author struct {
	Name string
	Face string // FaceConsole, FaceAPI or FaceCommand; empty: of Schedule
	Role Role   // that the person had; empty: not known, such as where nobody signs in
}

// String returns the author as ann (console, operator). A command is recorded by the name alone.
func (a Author) String() string {
	switch {
	case a.Face == FaceCommand, a.Face == "":
		return a.Name
	case a.Role != "":
		return a.Name + " (" + a.Face + ", " + string(a.Role) + ")"
	}
	return a.Name + " (" + a.Face + ")"
}

var authored = regexp.MustCompile(`^(.*) \((console|API|api)(?:, (viewer|operator|admin))?\)((?: for .*)?)$`)

// AuthorOf reads what an audit has recorded. What does not end with the name of another face came from a
// command.
func AuthorOf(who string) Author {
	found := authored.FindStringSubmatch(who)
	switch {
	case who == Schedule:
		return Author{Name: who}
	case found == nil:
		return Author{Name: who, Face: FaceCommand}
	}
	by := Author{Name: found[1] + found[4], Face: FaceAPI, Role: Role(found[3])}
	if found[2] == FaceConsole {
		by.Face = FaceConsole
	}
	return by
}

// How many changes FilterAudit reads at once, and altogether.
const (
	auditChunk = 500
	auditMost  = 5000
)

// FilterAudit is Recent for a place that returns its changes in their order alone: read returns at most n that
// come after from.Before, the newest first. A page ends after 5000 changes that were read, also when few or none of
// them match, and its Next then goes on.
func FilterAudit(ctx context.Context, f AuditFilter, limit int, read func(ctx context.Context, from AuditFilter, n int) ([]Change, error)) (AuditPage, error) {
	page, chunk := AuditPage{Changes: []Change{}}, auditChunk
	if f.Empty() {
		chunk = limit + 1
	}
	for seen := 0; ; {
		changes, err := read(ctx, f, chunk)
		if err != nil {
			return AuditPage{}, err
		}
		for _, c := range changes {
			if f.Matches(c) {
				if len(page.Changes) == limit {
					page.Next = f.Before
					return page, nil
				}
				page.Changes = append(page.Changes, c)
			}
			f.Before = c.ID
		}
		seen += len(changes)
		switch {
		case len(changes) < chunk:
			return page, nil
		case seen >= auditMost:
			page.Next = f.Before
			return page, nil
		}
	}
}

// RowBefore reads the Before of a log whose ids are the numbers of rows: the rows of the page have lower ones.
// Anybody may have written it, so the error is an *InputError.
func (f AuditFilter) RowBefore() (int64, error) {
	if f.Before == "" {
		return math.MaxInt64, nil
	}
	row, err := strconv.ParseInt(f.Before, 10, 64)
	if err != nil {
		return 0, &InputError{Problem: "before must be the id of a change, such as 17, got " + strconv.Quote(f.Before), Field: "before"}
	}
	return row, nil
}
