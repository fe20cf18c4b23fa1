package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/configs"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/migration"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// The exit codes of a binary.
const (
	ExitOK          = 0   // done
	ExitBad         = 1   // it ran and the answer is bad, or a part of it failed
	ExitUsage       = 2   // usage or configuration, also a file or folder that it may not open
	ExitUnavailable = 3   // a server it needs could not be had
	ExitInterrupted = 130 // Ctrl-C
)

// ExitError is an error that says its exit code. A nil Err ends the command without a word: it has
// shown its answer already.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the text of Err, or the code.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }

// Usage returns the error of a command line, or of settings, that a command can't work with:
// ExitUsage.
func Usage(format string, args ...any) error {
	return &ExitError{Code: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// Bad is an error with the exit code of a command that has found something wrong.
func Bad(format string, args ...any) error {
	return &ExitError{Code: ExitBad, Err: fmt.Errorf(format, args...)}
}

// Nearest returns the candidate that a person probably meant by word, or "": the same that mistakes
// in settings name.
func Nearest(word string, candidates []string) string { return configs.Nearest(word, candidates) }

// usageError is a mistake on the command line, found before the command ran.
type usageError struct {
	err     error
	command string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// unavailable reports whether err says that a server could not be had.
func unavailable(err error) bool {
	var marked interface{ Unavailable() bool }
	return errors.Is(err, pipeline.ErrUnavailable) || errors.As(err, &marked) && marked.Unavailable()
}

// exitCode decides; a code that the command named itself comes first. ctx is the one that signals
// end.
func exitCode(ctx context.Context, err error) int {
	named, hasCode := errors.AsType[*ExitError](err)
	switch {
	case err == nil:
		return ExitOK
	case hasCode:
		return named.Code
	case errors.Is(context.Cause(ctx), errInterrupt): // any error: the command could not finish
		return ExitInterrupted
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return ExitInterrupted
	case has[*usageError](err), has[*operate.InputError](err), has[*configs.Error](err), has[*migration.Error](err):
		return ExitUsage
	case setting.Denied(err): // a person must choose another folder; no server is missing
		return ExitUsage
	case unavailable(err):
		return ExitUnavailable
	case errors.Is(err, syscall.EADDRINUSE): // a person must choose another port
		return ExitUsage
	default:
		return ExitBad
	}
}

var oneWord = regexp.MustCompile(`^[a-z]+$`)

// withoutRepeats removes the second "kafka" of "kafka: topic a: kafka: no answer", and what stands
// twice in a row, as in "dead letters: dead letters: no answer". After a semicolon another error begins.
func withoutRepeats(text string) string {
	errs := strings.Split(text, "; ")
	for i, one := range errs {
		errs[i] = withoutRepeatsOfOne(one)
	}
	return strings.Join(errs, "; ")
}

func withoutRepeatsOfOne(text string) string {
	parts := strings.Split(text, ": ")
	last := len(parts) - 1
	kept := []string{}
	for i, part := range parts {
		again := i > 0 && part == parts[i-1] || oneWord.MatchString(part) && slices.Contains(kept, part)
		if i == last || !again {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ": ")
}

func has[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// unanswered reports whether err is that of a server for which the settings have an address.
func unanswered(err error) bool {
	if away, ok := errors.AsType[*unavailableError](err); ok {
		return away.server
	}
	return errors.Is(err, pipeline.ErrUnavailable)
}

// startIt says what to do when a server does not answer to cmd. Of a command without settings it
// can't say it, and the doctor has said it about each server.
func startIt(name string, cmd *cobra.Command) string {
	if cmd.Flags().Lookup("config") == nil || cmd.Name() == doctorName {
		return ""
	}
	doctor := name + " " + doctorName
	for _, flag := range []string{"config", "profile"} {
		if value, err := cmd.Flags().GetString(flag); err == nil && value != "" {
			doctor += " --" + flag + " " + value
		}
	}
	return fmt.Sprintf("Start what does not answer, create what is missing, or correct address, credentials and TLS in the settings.\nRun '%s' to have every server examined.\n", doctor)
}

// longProblem is the length from which on the problem of several settings is written once.
const longProblem = 100

// report writes err for a person: what failed, each cause in a line of its own, and what to do.
func report(o Options, cmd *cobra.Command, code int, err error) {
	var (
		named  *ExitError
		usage  *usageError
		schema *migration.Error
	)
	switch {
	case err == nil, errors.As(err, &named) && named.Err == nil:
	case errors.As(err, &usage):
		fmt.Fprintf(o.Stderr, "%s: %s\nRun '%s --help' for usage.\n", o.Name, err, usage.command)
	case has[*configs.Error](err):
		fmt.Fprintf(o.Stderr, "%s: the settings have mistakes:\n", o.Name)
		said := map[string]bool{}
		for _, e := range configs.Flatten(err) {
			one := *e
			if said[e.Problem] && len(e.Problem) > longProblem {
				one.Problem = "the same"
			}
			said[e.Problem] = true
			fmt.Fprintf(o.Stderr, "  %s\n", &one)
		}
	default:
		for _, line := range logs.Lines(err) {
			text := Printable(withoutRepeats(line.Text)) // it may quote what others sent
			if line.Depth > 0 {
				fmt.Fprintf(o.Stderr, "%*s%s\n", 2*line.Depth, "", text)
				continue
			}
			fmt.Fprintf(o.Stderr, "%s: %s\n", o.Name, text)
		}
		if file, ok := errors.AsType[*fs.PathError](err); ok && setting.Denied(err) && strings.HasPrefix(file.Path, os.TempDir()+"/") {
			fmt.Fprintf(o.Stderr, "Mount a folder that this process can write at %s, or name another one with TMPDIR, for temporary files.\n", os.TempDir())
		}
		switch {
		case !errors.As(err, &schema):
			if code == ExitUnavailable && unanswered(err) {
				fmt.Fprint(o.Stderr, startIt(o.Name, cmd))
			}
		case schema.Newer():
			fmt.Fprintf(o.Stderr, "Use a newer %s.\n", o.Name)
		default:
			fmt.Fprintf(o.Stderr, "Run '%s migrate' with these settings, as a database user who owns the tables.\n", o.Name)
		}
	}
}
