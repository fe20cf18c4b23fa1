package letters

import (
	"regexp"
	"strings"
)

// fingerprints names kinds of errors.
type fingerprints struct{ variable *regexp.Regexp }

// newFingerprints knows what differs between two errors of one kind: UUIDs, hexadecimal ids and hashes, ULIDs,
// and numbers with their sign, fractions and dots (addresses, versions).
func newFingerprints() fingerprints {
	return fingerprints{regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b` +
		`|\b0x[0-9a-f]+\b` +
		`|\b[0-9a-f]{8,}\b` +
		`|\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b` +
		`|-?[0-9]+(?:[.][0-9]+)*`)}
}

// normalize returns an error's text with everything that differs between errors of one kind replaced by #.
func (f fingerprints) normalize(text string) string {
	return strings.Join(strings.Fields(f.variable.ReplaceAllString(text, "#")), " ")
}

// of names the kind of an error: the same for letters of one class and handler whose errors differ only in
// numbers, ids and white space.
func (f fingerprints) of(class, handler, text string) string {
	return ID(class, handler, f.normalize(text))[:12]
}
