package deadletter

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

const (
	// shortestPrefix is how much of an id or a fingerprint may stand for it.
	shortestPrefix = 4
	// maxCandidates is how many are named of what such a beginning may stand for.
	maxCandidates = 5
	// maxWords is how many words are looked at for one that is like an unknown one, maxNamed how many are named.
	maxWords = 1000
	maxNamed = 10
)

// known makes ids and fingerprints whole, and finds a word of the filter that no letter has, which is a mistake.
func (f *filterFlags) known(ctx context.Context, s *letters.Store) (err error) {
	if len(f.IDs) > 0 {
		n, err := s.Count(ctx, letters.Filter{IDs: f.IDs})
		if err != nil || int(n) == len(f.IDs) {
			return err // all of them are whole
		}
	}
	for i, id := range f.IDs {
		if f.IDs[i], err = whole(ctx, s, "dead letter", letters.FieldID, id); err != nil {
			return err
		}
	}
	f.IDs = slices.Compact(slices.Sorted(slices.Values(f.IDs)))
	if f.Fingerprint, err = whole(ctx, s, "--fingerprint", letters.FieldFingerprint, f.Fingerprint); err != nil {
		return err
	}
	for _, w := range []struct {
		field letters.Field
		word  string
	}{
		{letters.FieldSource, f.Source}, {letters.FieldPlugin, f.Plugin}, {letters.FieldHandler, f.Handler},
		{letters.FieldClass, f.Class}, {letters.FieldFingerprint, f.Fingerprint},
	} {
		if w.word == "" {
			continue
		}
		if err := wordOf(ctx, s, w.field, w.word); err != nil {
			return err
		}
	}
	return nil
}

// whole returns the only value of a field that begins as given. What is no beginning of any is returned as it is.
func whole(ctx context.Context, s *letters.Store, what string, field letters.Field, given string) (string, error) {
	if given == "" {
		return "", nil
	}
	found, err := s.Words(ctx, field, given, maxCandidates+1)
	switch {
	case err != nil:
		return "", err
	case len(found) == 0, found[0] == given:
		return given, nil
	case utf8.RuneCountInString(given) < shortestPrefix:
		return "", app.Usage("%s %q is too short: give all of it, or its first %d characters or more", what, given, shortestPrefix)
	case len(found) == 1:
		return found[0], nil
	}
	more := ""
	if len(found) > maxCandidates {
		found, more = found[:maxCandidates], " and others"
	}
	return "", app.Usage("%s %q may be any of %s%s: give more of it", what, given, strings.Join(found, ", "), more)
}

// wordOf finds a mistake in a word for which a flag of the field's name asks. Without any letters there is none.
func wordOf(ctx context.Context, s *letters.Store, field letters.Field, word string) error {
	found, err := s.Words(ctx, field, word, 1)
	if err != nil || len(found) == 1 && found[0] == word {
		return err
	}
	all, err := s.Words(ctx, field, "", maxWords)
	if err != nil || len(all) == 0 {
		return err
	}
	words := slices.DeleteFunc(all, func(w string) bool { return w == "" })
	hint := "there is"
	if meant := app.Nearest(word, words); meant != "" {
		hint = fmt.Sprintf("did you mean %q? There is", meant)
		words = slices.Insert(slices.DeleteFunc(words, func(w string) bool { return w == meant }), 0, meant)
	}
	return app.Usage("--%s: no letter has %q; %s: %s", field, word, hint, named(words))
}

// named joins words, not too many of them.
func named(words []string) string {
	switch {
	case len(words) == 0:
		return "none"
	case len(words) > maxNamed:
		return strings.Join(words[:maxNamed], ", ") + fmt.Sprintf(" and %d more", len(words)-maxNamed)
	}
	return strings.Join(words, ", ")
}
