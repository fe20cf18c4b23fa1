package setting

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// Secret is a setting that must never be shown. In a settings file it is written as
// `env:NAME` (an environment variable), `file:/path` (a file; trailing newlines are cut)
// or literally. It prints as [redacted] everywhere.
//
// A Secret has the value of the moment when the settings were read. What a running service sends comes
// from Live, because the file may have another content by then.
type Secret struct {
	value  string
	source *source // nil: value never changes
}

// source is where the later values of a Secret come from: a file, or a function.
type source struct {
	file    string
	provide func(context.Context) (string, error)
}

// NewSecret returns a Secret with a literal value.
func NewSecret(value string) Secret { return Secret{value: value} }

// NewProvidedSecret returns a Secret whose values come from provide, for a binary whose servers take
// tokens of a cloud instead of passwords. Live calls provide whenever the service needs the value, from
// several goroutines at once, so provide keeps a token for as long as it is valid. initial is the value
// that Reveal returns and that Validate methods check; it may be empty.
func NewProvidedSecret(initial string, provide func(context.Context) (string, error)) Secret {
	return Secret{initial, &source{provide: provide}}
}

// Reveal returns the value of the moment when the settings were read.
func (s Secret) Reveal() string { return s.value }

// IsZero reports whether no secret was given.
func (s Secret) IsZero() bool { return s.value == "" && s.source == nil }

// String returns [redacted], or nothing when there is no secret.
func (s Secret) String() string {
	if s.IsZero() {
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
		*s = Secret{value: v}
	case strings.HasPrefix(raw, "file:"):
		file := strings.TrimPrefix(raw, "file:")
		value, err := readSecret(file)
		if err != nil {
			return fmt.Errorf("%s%w", noFile, err)
		}
		*s = Secret{value, &source{file: file}}
	default:
		*s = Secret{value: raw}
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
