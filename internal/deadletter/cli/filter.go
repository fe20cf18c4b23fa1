package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

const (
	// minPrefix is the least length of a prefix that stands for an id or a fingerprint.
	minPrefix = 4
	// maxCandidates bounds the values in the error about an ambiguous prefix.
	maxCandidates = 5
	// maxValues bounds the values that are compared with an unknown one, maxNamed those that its
	// error names.
	maxValues = 1000
	maxNamed  = 10
)

// filterFlags are the flags that select dead letters.
type filterFlags struct {
	store.Filter
	since, until string
}

// filterField is a field and where its value belongs.
type filterField struct {
	operate.Field
	to *string
}

func (f *filterFlags) fields() []filterField {
	field := func(to *string, name, help string) filterField {
		return filterField{operate.Field{Name: name, Help: help}, to}
	}
	return []filterField{
		field(&f.Source, "source", "only from this `topic` or stream"),
		field(&f.Plugin, "plugin", "only of the plugin of this `name`"),
		field(&f.Handler, "handler", "only of the `route` of this name"),
		field(&f.Class, "class", "only with errors of this `class`"),
		field(&f.Fingerprint, "fingerprint", "only with errors of this `group` (see list --group)"),
		field(&f.Under, "subject", "only about this `subject` and its parts: POINT:77 selects the payouts of that promotion"),
		field(&f.since, "since", "only with a last failure at or after this `time`: RFC 3339, or an age such as 2h"),
		field(&f.until, "until", "only with a last failure before this `time`"),
	}
}

func (f *filterFlags) addFlags(cmd *cobra.Command) {
	for _, field := range f.fields() {
		cmd.Flags().StringVar(field.to, field.Name, "", field.Help)
	}
}

// takeInput takes the values of the fields.
func (f *filterFlags) takeInput(in operate.Input) error {
	for _, field := range f.fields() {
		*field.to = in.Text(field.Name)
	}
	return f.parse()
}

// parse reads the times.
func (f *filterFlags) parse() (err error) {
	if f.Since, err = parseTime("since", f.since); err == nil {
		f.Until, err = parseTime("until", f.until)
	}
	return err
}

func parseTime(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(text); err == nil {
		return time.Now().Add(-age), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, app.Usage("--%s must be a time such as 2026-03-04T05:06:07Z, or an age such as 2h, got %q", flag, text)
	}
	return t, nil
}

// check expands the prefixes of ids and of the fingerprint, and refuses a value that no dead letter
// has: it is probably a typing error.
func (f *filterFlags) check(ctx context.Context, s *store.Store) (err error) {
	if n, err := s.Count(ctx, store.Filter{IDs: f.IDs}); err != nil {
		return err
	} else if len(f.IDs) > 0 && int(n) == len(f.IDs) {
		return nil // complete ids, which exclude all other filters
	}
	for i, id := range f.IDs {
		if f.IDs[i], err = expandPrefix(ctx, s, "dead letter", store.FieldID, id); err != nil {
			return err
		}
	}
	f.IDs = slices.Compact(slices.Sorted(slices.Values(f.IDs)))
	if f.Fingerprint, err = expandPrefix(ctx, s, "--fingerprint", store.FieldFingerprint, f.Fingerprint); err != nil {
		return err
	}
	for _, given := range []struct {
		field store.Field
		value string
	}{
		{store.FieldSource, f.Source}, {store.FieldPlugin, f.Plugin}, {store.FieldHandler, f.Handler}, {store.FieldClass, f.Class},
		{store.FieldFingerprint, f.Fingerprint},
	} {
		if given.value == "" {
			continue
		}
		if err := checkValue(ctx, s, given.field, given.value); err != nil {
			return err
		}
	}
	return checkSubject(ctx, s, f.Under)
}

// checkSubject refuses a subject that no dead letter has. A letter that could not be decoded has none.
func checkSubject(ctx context.Context, s *store.Store, subject string) error {
	if subject == "" {
		return nil
	}
	if n, err := s.Count(ctx, store.Filter{Under: subject}); err != nil || n > 0 {
		return err
	}
	return app.Usage("--subject: no dead letter is about %q or a part of it; deadletter show has the subject of one, such as POINT:77:5", subject)
}

// expandPrefix returns the only value of a field with this prefix. It returns a prefix of no value
// unchanged.
func expandPrefix(ctx context.Context, s *store.Store, what string, field store.Field, prefix string) (string, error) {
	if prefix == "" {
		return "", nil
	}
	found, err := s.Values(ctx, field, prefix, maxCandidates+1)
	switch {
	case err != nil:
		return "", err
	case len(found) == 0, found[0] == prefix:
		return prefix, nil
	case utf8.RuneCountInString(prefix) < minPrefix:
		return "", app.Usage("%s %q is too short: a prefix has at least %d characters", what, prefix, minPrefix)
	case len(found) == 1:
		return found[0], nil
	}
	more := ""
	if len(found) > maxCandidates {
		found, more = found[:maxCandidates], " and others"
	}
	return "", app.Usage("%s %q is the prefix of %s%s: use a longer one", what, prefix, strings.Join(found, ", "), more)
}

// checkValue refuses a value that no dead letter has in a field. The flag has the name of the
// field.
func checkValue(ctx context.Context, s *store.Store, field store.Field, value string) error {
	found, err := s.Values(ctx, field, value, 1)
	if err != nil || len(found) == 1 && found[0] == value {
		return err
	}
	all, err := s.Values(ctx, field, "", maxValues)
	if err != nil {
		return err
	}
	values := slices.DeleteFunc(all, func(v string) bool { return v == "" })
	suggestion := "the store has"
	if nearest := app.Nearest(value, values); nearest != "" {
		suggestion = fmt.Sprintf("did you mean %q? The store has", nearest)
		values = slices.Insert(slices.DeleteFunc(values, func(v string) bool { return v == nearest }), 0, nearest)
	}
	return app.Usage("--%s: no dead letter has %q; %s: %s", field, value, suggestion, named(values))
}

// named joins the first values.
func named(values []string) string {
	switch {
	case len(values) == 0:
		return "none"
	case len(values) > maxNamed:
		return strings.Join(values[:maxNamed], ", ") + fmt.Sprintf(" and %d more", len(values)-maxNamed)
	}
	return strings.Join(values, ", ")
}

// parseStates reads the values of --state. No value selects the waiting ones; all is no condition.
func parseStates(names []string) ([]store.State, error) {
	if len(names) == 0 {
		return store.Waiting(), nil
	}
	var states []store.State
	for _, name := range names {
		if name == "all" {
			return nil, nil
		}
		if !slices.Contains(store.States(), store.State(name)) {
			return nil, app.Usage("--state must be all or of %s, got %q", joined(store.States()), name)
		}
		states = append(states, store.State(name))
	}
	return states, nil
}

func joined(states []store.State) string { return strings.Join(stateNames(states), ", ") }

func stateNames(states []store.State) []string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return names
}
