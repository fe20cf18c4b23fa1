// Package setting has what the settings of plugins are made of: secrets, TLS, addresses, and the list
// of problems that a Validate method reports. A plugin checks all of its settings before it returns, so
// that a person corrects the file once and not once per mistake:
//
//	func (c *Config) Validate() error {
//		var p setting.Problems
//		p.Check(c.MaxLen > 0, "stream.max_len", "must be > 0, got %d", c.MaxLen)
//		p.Positive("timeout", c.Timeout)
//		return p.Err()
//	}
package setting

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// FieldError names one wrong setting. Path is relative to the struct that Validate belongs to,
// in the words of the settings file (stream.max_len).
type FieldError struct {
	Path    string
	Problem string // what was expected and what was found, such as "must be > 0, got -1"
}

// Error returns "path: problem".
func (e *FieldError) Error() string { return e.Path + ": " + e.Problem }

// Problems are the wrong settings that a Validate method has found. The zero value has none.
type Problems []error

// Check adds the problem of the setting at path unless ok.
func (p *Problems) Check(ok bool, path, format string, args ...any) {
	if !ok {
		*p = append(*p, &FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
	}
}

// Positive checks that a duration is > 0.
func (p *Problems) Positive(path string, d time.Duration) {
	p.Check(d > 0, path, "must be > 0, got %s", d)
}

// Groups checks a list of consumer groups.
func (p *Problems) Groups(path string, groups []string) {
	for i, g := range groups {
		p.Check(g != "" && !strings.Contains(g, "\n"), fmt.Sprintf("%s[%d]", path, i), "must be the name of a consumer group, got %q", g)
	}
}

// Roles checks the setting roles of a handler that has two.
func (p *Problems) Roles(roles []string, one, other string) {
	const path = "roles"
	p.Check(len(roles) > 0, path, "must have %s, %s or both", one, other)
	for i, role := range roles {
		at := fmt.Sprintf("%s[%d]", path, i)
		p.Check(role == one || role == other, at, "must be %s or %s, got %q", one, other, role)
		p.Check(!slices.Contains(roles[:i], role), at, "%q is in the list already", role)
	}
}

// Under adds the error of the Validate method of the section at path. See FieldErrorsUnder.
func (p *Problems) Under(path string, err error) { *p = append(*p, FieldErrorsUnder(path, err)) }

// Err returns all problems as one error, or nil.
func (p Problems) Err() error { return errors.Join(p...) }

// FieldErrorsUnder puts prefix and a dot before the path of every FieldError in err, which may be a
// tree of joined errors. It serves a Config that contains another Config. For nil it returns nil.
func FieldErrorsUnder(prefix string, err error) error {
	switch e := err.(type) { //nolint:errorlint // the tree itself is walked
	case nil:
		return nil
	case *FieldError:
		return &FieldError{Path: prefix + "." + e.Path, Problem: e.Problem}
	case interface{ Unwrap() []error }:
		var errs []error
		for _, one := range e.Unwrap() {
			errs = append(errs, FieldErrorsUnder(prefix, one))
		}
		return errors.Join(errs...)
	default:
		return &FieldError{Path: prefix, Problem: err.Error()}
	}
}
