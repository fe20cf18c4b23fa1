package setting

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
)

// Secret is a setting that must never be shown. In a settings file it is written as
// `env:NAME` (an environment variable), `file:/path` (a file) or literally. Newlines at the end of a variable or a file
// are cut, and an empty one is an error. It prints as [redacted] everywhere.
//
// A Secret has the value of the moment when the settings were read. What a running service sends comes
// from Live, because the file may have another content by then.
type Secret struct {
	value   string
	source  *source       // nil: value never changes
	missing *MissingError // nil: there is a value, or none was asked for
}

// MissingError is the error of a Secret whose variable or file does not exist here, or is empty. The Secret keeps it and
// has an empty value, so a command that never needs the value can do its work. It is safe for concurrent use.
type MissingError struct {
	problem string
	used    atomic.Bool
}

// Error says what does not exist.
func (m *MissingError) Error() string { return m.problem }

// Used reports whether the value was asked for after the last Forget.
func (m *MissingError) Used() bool { return m.used.Load() }

// Forget makes Used return false, such as after Validate methods have looked at the value.
func (m *MissingError) Forget() { m.used.Store(false) }

func (m *MissingError) use() {
	if m != nil {
		m.used.Store(true)
	}
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
	return Secret{value: initial, source: &source{provide: provide}}
}

// Reveal returns the value of the moment when the settings were read.
func (s Secret) Reveal() string {
	s.missing.use()
	return s.value
}

// IsZero reports whether no secret was given.
func (s Secret) IsZero() bool { return s.value == "" && s.source == nil && s.missing == nil }

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

// UnmarshalText reads env:NAME, file:/path or a literal value. Its error is a *MissingError.
func (s *Secret) UnmarshalText(text []byte) error {
	raw := string(text)
	switch {
	case strings.HasPrefix(raw, "env:"):
		name := strings.TrimPrefix(raw, "env:")
		v, ok := os.LookupEnv(name)
		if !ok {
			return s.lack(variable + name + notSet)
		}
		if v = strings.TrimRight(v, newlines); v == "" { // otherwise it would silently be no password, or no database
			return s.lack(variable + name + isEmpty)
		}
		*s = Secret{value: v}
	case strings.HasPrefix(raw, "file:"):
		file := strings.TrimPrefix(raw, "file:")
		value, err := readSecret(file)
		if err != nil {
			return s.lack(noFile + err.Error())
		}
		*s = Secret{value: value, source: &source{file: file}}
	default:
		*s = Secret{value: raw}
	}
	return nil
}

// lack makes s a secret without a value.
func (s *Secret) lack(problem string) error {
	m := &MissingError{problem: problem}
	*s = Secret{missing: m}
	return m
}

const (
	variable = "environment variable "
	notSet   = " is not set"
	isEmpty  = " is empty: it must contain the secret"
	noFile   = "secret: "

	newlines = "\r\n" // at the end of a file or a variable, which an editor or a command has added
)

// NotReadable reports whether the problem of a setting is that this user may not read a file that it names.
func NotReadable(problem string) bool { return strings.HasSuffix(problem, ": "+syscall.EACCES.Error()) }

// NotHere reports whether the problem of a setting is that a Secret's variable or file, or another file that the
// setting names, such as a certificate, does not exist on this machine, or that the variable is empty.
func NotHere(problem string) bool {
	return strings.HasPrefix(problem, variable) && (strings.HasSuffix(problem, notSet) || strings.HasSuffix(problem, isEmpty)) || strings.HasPrefix(problem, noFile) ||
		strings.HasSuffix(problem, ": "+syscall.ENOENT.Error())
}
