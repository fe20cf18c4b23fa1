package operate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/pipeline"
)

// Operated is implemented by a plugin that has reports or actions. Operations is called before the
// settings are read, and its functions are called after all plugins were registered. A plugin that also offers
// itself in Register (pipeline.Registry.Offer) has its actions in the console.
type Operated interface {
	Operations() Operations
}

// Operations are the reports and actions of a plugin.
type Operations struct {
	Reports []Report
	Actions []Action
}

// About is what a person reads before using a report or an action.
type About struct {
	// Name is unique in the binary. Its words are those of the command, such as "topics create".
	Name string
	// Short is one line. Long is the help, and empty when Short says all.
	Short, Long string
	// Examples are commands without the name of the binary. At least one is required.
	Examples []string
	// Fields are what a person may give: the flags of the command.
	Fields []Field
	// Validate reports what is wrong with the fields, before anything is started. May be nil.
	Validate func(Input) error
	// Register adds the services that must run meanwhile. Nil: none. It is called in a process of
	// its own only, because a process that runs routes has them already.
	Register func(*pipeline.Registry) error
}

// Report answers a question and changes nothing.
type Report struct {
	About
	// Read returns the answer. With an error, the answer holds what is known all the same.
	Read func(context.Context, *pipeline.Registry, Input) (Answer, error)
}

// Action changes something.
type Action struct {
	About
	Danger Danger
	// Role is the least role of a person who may do it where persons have roles, as on a page. A
	// command asks for none, because its user has the settings and so the rights on the servers.
	Role Role
	// Audited says that the person and the reason are recorded, so that both are required.
	Audited bool
	// Recorded says that Do calls Record for it, because the plugin of the action keeps no audit.
	Recorded bool
	// Preview returns what Do would do now, and changes nothing: the --dry-run of the command.
	Preview func(context.Context, *pipeline.Registry, Input) (Answer, error)
	// Do returns what was done. With an error, the answer holds what was done before it.
	Do func(context.Context, *pipeline.Registry, Input, Use) (Answer, error)
}

// Use is one use of an action by a person.
type Use struct {
	// ID is the same when one use arrives twice, as after a double click, and when an interrupted one
	// is continued. Where an action changes many things, one use changes each of them once. Empty:
	// this use is unlike any other.
	ID string
	// Who and Why are recorded by an action that is Audited, and are empty for any other.
	Who, Why string
	// Progress is called with the number of things that are done and of all. It may be nil, and must
	// not block.
	Progress func(done, total int64)
	// Say is called with a sentence for the person who waits, such as what is waited for. It may be
	// nil, and must not block.
	Say func(text string)
}

type progressKey struct{}

// WithProgress returns a context in which Progress calls show. It is for the caller of Report.Read, which has no Use.
func WithProgress(ctx context.Context, show func(done, total int64)) context.Context {
	return context.WithValue(ctx, progressKey{}, show)
}

// Progress says how far a report is that takes long, to a person who waits for it. The caller of Report.Read may not
// show it.
func Progress(ctx context.Context, done, total int64) {
	if show, ok := ctx.Value(progressKey{}).(func(done, total int64)); ok {
		show(done, total)
	}
}

// Report calls Progress.
func (u Use) Report(done, total int64) {
	if u.Progress != nil {
		u.Progress(done, total)
	}
}

// Tell calls Say.
func (u Use) Tell(text string) {
	if u.Say != nil {
		u.Say(text)
	}
}

// Role is what a person may do. Each role may also do what those before it may.
type Role string

// Includes reports whether a person with the role may do what needs another one. What needs no known role,
// because its author has not decided, needs Admin.
func (r Role) Includes(needed Role) bool {
	rank := map[Role]int{Viewer: 1, Operator: 2, Admin: 3}
	least := rank[needed]
	if least == 0 {
		least = rank[Admin]
	}
	return rank[r] >= least
}

// The roles.
const (
	Viewer   Role = "viewer"   // sees everything, and changes nothing
	Operator Role = "operator" // changes the work: replays, discards, resolves, pauses
	Admin    Role = "admin"    // changes the servers, such as topics
)

// InputError says that a field has a value that the report or action can't work with, which only it
// can tell. The command then ends with the exit code of a wrong command line.
type InputError struct {
	Problem string
	// Field is the one that is wrong, or empty when it is not one alone.
	Field string
}

// Error returns the problem.
func (e *InputError) Error() string { return e.Problem }

// Danger is how an action can be undone.
type Danger string

// The dangers.
const (
	Safe         Danger = "safe"         // it adds something, and can be repeated
	Irreversible Danger = "irreversible" // it can't be undone
)

// FieldType is the type of a field's value.
type FieldType int

// The types.
const (
	Text FieldType = iota
	Number
	Switch
	List // of texts
)

// Field is one value that a person may give.
type Field struct {
	Name string // the name of the flag
	Type FieldType
	Help string // a word in back quotes names the value
	// Default is used when the field is not given. Empty: none, 0 or false.
	Default string
	// Required fields must be given, and not be empty.
	Required bool
	// Arguments says that the value, a Text, is an argument of the command instead of a flag, or that the
	// values of a List are its arguments. The commands of pipeline/app take one such field.
	Arguments bool
	// Shape is how help writes the argument, such as DOMAIN/JOB_ID. Empty: the name in capitals.
	Shape string
}

// Argument is how help and errors write an argument of the command.
func (f Field) Argument() string { return cmp.Or(f.Shape, strings.ToUpper(f.Name)) }

// Input has the values of fields, as url.Values has those of a form.
type Input map[string][]string

// Text returns a value, or "".
func (in Input) Text(field string) string {
	if len(in[field]) == 0 {
		return ""
	}
	return in[field][0]
}

// List returns all values.
func (in Input) List(field string) []string { return in[field] }

// Number returns a value, or 0 for one that is no number.
func (in Input) Number(field string) int {
	n, _ := strconv.Atoi(in.Text(field))
	return n
}

// Switch reports whether a value is true.
func (in Input) Switch(field string) bool { return in.Text(field) == strconv.FormatBool(true) }

// Complete returns the input with the default of each field that is not given, as the command has it.
func (a About) Complete(in Input) Input {
	full := Input{}
	for _, f := range a.Fields {
		if f.Type != List {
			full[f.Name] = []string{f.Default}
		}
	}
	maps.Copy(full, in)
	return full
}

// Check reports a required field that is missing, a number that is none, and what Validate says.
func (a About) Check(in Input) error {
	for _, f := range a.Fields {
		name, value := "--"+f.Name, in.Text(f.Name)
		if f.Arguments {
			name = f.Argument()
		}
		if f.Required && strings.TrimSpace(value) == "" {
			return &InputError{Problem: name + " is required", Field: f.Name}
		}
		if _, err := strconv.Atoi(value); f.Type == Number && value != "" && err != nil {
			return &InputError{Problem: fmt.Sprintf("%s must be a whole number, got %q", name, value), Field: f.Name}
		}
	}
	if a.Validate == nil {
		return nil
	}
	return a.Validate(in)
}

// Answer is what a report or an action returns.
type Answer struct {
	// Value is the answer for programs, and is encoded as JSON. Its fields keep their names.
	Value any
	// Lines are sentences that come first, such as what was done.
	Lines []string
	// Tables are the answer for people.
	Tables []Table
	// Notes are sentences below the tables.
	Notes []string
	// Checks say what is not in order. One that failed makes the exit code 1.
	Checks []Check
}

// Failed reports whether a check has failed.
func (a Answer) Failed() bool {
	for _, c := range a.Checks {
		if c.Level == Fail {
			return true
		}
	}
	return false
}

// Table has a row per thing. Each row has a cell per column.
type Table struct {
	Columns []string
	Rows    [][]string
	Empty   string // the sentence in place of a table without rows; empty: the columns alone
}

// Level is the result of a check.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // it works, and should be changed
	Fail Level = "fail"
)

// Check is one line about something that should be in order.
type Check struct {
	Name  string `json:"name"` // what was checked
	Level Level  `json:"level"`
	Text  string `json:"text"`
	// Remedy is what to do about it, and Runbook the section that says more. Both may be empty.
	Remedy  string `json:"remedy,omitempty"`
	Runbook string `json:"runbook,omitempty"`
}

// String returns the check in one line.
func (c Check) String() string {
	text := c.Name + ": " + c.Text
	if todo := c.ToDo(); todo != "" {
		text += "; " + todo
	}
	return text
}

// ToDo returns the remedy, and where more is said about it. Empty: neither is known.
func (c Check) ToDo() string {
	if c.Runbook == "" {
		return c.Remedy
	}
	return strings.TrimSpace(c.Remedy + " (runbook: " + c.Runbook + ")")
}
