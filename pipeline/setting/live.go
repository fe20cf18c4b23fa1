package setting

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
)

const (
	maxSecretBytes = 64 << 10
	secretWarning  = time.Minute // between two warnings about one secret
)

// Live is the current value of a Secret, for a service that runs for longer than a credential is valid.
// A file is read again after it was changed or replaced. While the file is missing, empty or not
// acceptable, the last good value stays in use and a warning is logged once a minute. It is safe for
// concurrent use.
type Live struct {
	name    string
	source  *source
	missing *MissingError
	accept  func(string) error
	log     *slog.Logger
	warn    *logs.Throttle

	file *followed[string] // nil: not of a file

	mu    sync.Mutex
	value string // unless it is of a file
}

// Live returns the current value of s. The name says in warnings what the secret is for, such as the
// path of its setting. accept refuses a new value by its error, which must not contain the value; nil
// accepts every value. A nil log discards.
func (s Secret) Live(name string, log *slog.Logger, accept func(string) error) *Live {
	l := &Live{
		name: name, source: s.source, missing: s.missing, accept: accept, value: s.value,
		log: cmp.Or(log, slog.New(slog.DiscardHandler)), warn: logs.NewThrottle(secretWarning),
	}
	if s.source != nil && s.source.provide == nil {
		l.file = &followed[string]{
			paths: []string{s.source.file}, limit: maxSecretBytes, value: s.value,
			parse: func(contents [][]byte, last string) (string, error) {
				value, err := secretOf(s.source.file, contents[0])
				if err != nil {
					return "", err
				}
				return value, l.check(value, last)
			},
		}
	}
	return l
}

// Value returns the current value. Call it for each new connection or request instead of keeping the
// value. It costs a look at the file's time, and ctx bounds the function of NewProvidedSecret.
func (l *Live) Value(ctx context.Context) string {
	l.missing.use()
	switch {
	case l.source == nil:
		return l.value
	case l.source.provide != nil:
		return l.provided(ctx)
	}
	value, changed, err := l.file.look()
	switch {
	case err != nil:
		l.keep(err, slog.String("file", l.source.file))
	case changed:
		l.log.InfoContext(ctx, "secret was read again and has changed", slog.String("secret", l.name), slog.String("file", l.source.file))
	}
	return value
}

// provided calls the function without the lock, because it may wait for a server.
func (l *Live) provided(ctx context.Context) string {
	value, err := l.source.provide(ctx)
	if err == nil && value == "" {
		err = errors.New("the value is empty")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err = l.check(value, l.value)
	}
	if err != nil {
		l.keep(err)
		return l.value
	}
	l.value = value
	return value
}

func (l *Live) check(value, last string) error {
	if l.accept == nil || value == last {
		return nil
	}
	return l.accept(value)
}

func (l *Live) keep(err error, more ...slog.Attr) {
	l.warn.Warn(l.log, "secret can't be read again, so its last value stays in use", append(more, slog.String("secret", l.name), logs.Err(err))...)
}

// readSecret returns the content of a file without the newlines at its end.
func readSecret(path string) (string, error) {
	content, _, err := readFile(path, maxSecretBytes)
	if err != nil {
		return "", err
	}
	return secretOf(path, content)
}

func secretOf(path string, content []byte) (string, error) {
	value := strings.TrimRight(string(content), newlines)
	if value == "" {
		return "", errors.New("file " + path + isEmpty)
	}
	return value, nil
}

// LiveFile is the current value that is made of a file, such as a set of keys. The file is read again
// after it was changed or replaced. While it is missing or parse refuses it, the last good value stays in
// use and a warning is logged once a minute. Build it with NewLiveFile. It is safe for concurrent use.
type LiveFile[T comparable] struct {
	file followed[T]
	name string
	log  *slog.Logger
	warn *logs.Throttle
}

// NewLiveFile reads the file at path, and returns its value or why there is none. The name says in
// warnings what the file is for, such as the path of its setting. A file of more than limit bytes is
// refused. A nil log discards.
func NewLiveFile[T comparable](name, path string, limit int64, log *slog.Logger, parse func([]byte) (T, error)) (*LiveFile[T], error) {
	l := &LiveFile[T]{
		name: name, log: cmp.Or(log, slog.New(slog.DiscardHandler)), warn: logs.NewThrottle(secretWarning),
		file: followed[T]{paths: []string{path}, limit: limit, parse: func(contents [][]byte, _ T) (T, error) { return parse(contents[0]) }},
	}
	_, _, err := l.file.look()
	return l, err
}

// Value returns the current value. Call it for each use instead of keeping the value. It costs a look at
// the file's time.
func (l *LiveFile[T]) Value(ctx context.Context) T {
	value, changed, err := l.file.look()
	switch {
	case err != nil:
		l.warn.Warn(l.log, "file can't be read again, so what it had before stays in use", slog.String("of", l.name), slog.String("file", l.file.paths[0]), logs.Err(err))
	case changed:
		l.log.InfoContext(ctx, "file was read again and has changed", slog.String("of", l.name), slog.String("file", l.file.paths[0]))
	}
	return value
}
