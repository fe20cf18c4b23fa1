package store

import (
	"regexp"
	"strings"
)

// fingerprints groups errors that differ only in numbers, ids and white space.
type fingerprints struct{ variable *regexp.Regexp }

// newFingerprints replaces UUIDs, hexadecimal ids and hashes, ULIDs, and numbers with their sign,
// fractions and dots (addresses, versions).
func newFingerprints() fingerprints {
	return fingerprints{regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b` +
		`|\b0x[0-9a-f]+\b` +
		`|\b[0-9a-f]{8,}\b` +
		`|\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b` +
		`|-?[0-9]+(?:[.][0-9]+)*`)}
}

// normalize replaces each variable part of an error's text by #.
func (f fingerprints) normalize(text string) string {
	return strings.Join(strings.Fields(f.variable.ReplaceAllString(text, "#")), " ")
}

// of returns the fingerprint: the same for dead letters of one class and handler whose normalized
// errors are equal.
func (f fingerprints) of(class, handler, text string) string {
	return ID(class, handler, f.normalize(text))[:12]
}
