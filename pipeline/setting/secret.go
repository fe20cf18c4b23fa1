package setting

import (
	"fmt"
	"os"
	"strings"
)

// Secret is a setting that must never be shown. In a settings file it is written as
// `env:NAME` (an environment variable), `file:/path` (a file; trailing newlines are cut)
// or literally. It prints as [redacted] everywhere.
type Secret struct{ value string }

// NewSecret returns a Secret with a literal value.
func NewSecret(value string) Secret { return Secret{value} }

// Reveal returns the value, for the one place that sends it to a server.
func (s Secret) Reveal() string { return s.value }

// IsZero reports whether no secret was given.
func (s Secret) IsZero() bool { return s.value == "" }

// String returns [redacted], or nothing when there is no secret.
func (s Secret) String() string {
	if s.value == "" {
		return ""
	}
	return "[redacted]"
}

// GoString returns what String returns, so that %#v shows nothing either.
func (s Secret) GoString() string { return s.String() }

// MarshalText returns what String returns.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads env:NAME, file:/path or a literal value.
func (s *Secret) UnmarshalText(text []byte) error {
	raw := string(text)
	switch {
	case strings.HasPrefix(raw, "env:"):
		name := strings.TrimPrefix(raw, "env:")
		v, ok := os.LookupEnv(name)
		if !ok {
			return fmt.Errorf("environment variable %s%s", name, notSet)
		}
		s.value = v
	case strings.HasPrefix(raw, "file:"):
		b, err := os.ReadFile(strings.TrimPrefix(raw, "file:"))
		if err != nil {
			return fmt.Errorf("%s%w", noFile, err)
		}
		s.value = strings.TrimRight(string(b), "\r\n")
	default:
		s.value = raw
	}
	return nil
}

const (
	notSet = " is not set"
	noFile = "secret: "
)

// SecretNotSet reports whether the problem of a setting is that a Secret's variable or file does
// not exist here.
func SecretNotSet(problem string) bool {
	return strings.HasPrefix(problem, "environment variable ") && strings.HasSuffix(problem, notSet) || strings.HasPrefix(problem, noFile)
}
