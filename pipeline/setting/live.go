package setting

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
)

const (
	maxSecretBytes = 64 << 10
	secretWarning  = time.Minute // between two warnings about one secret

	// A file that was changed less than this before it was read is read again, because a second change
	// may have left its time and its size as they were.
	fileSettled = 2 * time.Second
)

// Live is the current value of a Secret, for a service that runs for longer than a credential is valid.
// A file is read again after it was changed or replaced. While the file is missing, empty or not
// acceptable, the last good value stays in use and a warning is logged once a minute. It is safe for
// concurrent use.
type Live struct {
	name   string
	source *source
	accept func(string) error
	log    *slog.Logger
	warn   *logs.Throttle

	mu    sync.Mutex
	value string
	seen  fs.FileInfo // of the file that value is from; nil: read it again
}

// Live returns the current value of s. The name says in warnings what the secret is for, such as the
// path of its setting. accept refuses a new value by its error, which must not contain the value; nil
// accepts every value. A nil log discards.
func (s Secret) Live(name string, log *slog.Logger, accept func(string) error) *Live {
	return &Live{
		name: name, source: s.source, accept: accept, value: s.value,
		log: cmp.Or(log, slog.New(slog.DiscardHandler)), warn: logs.NewThrottle(secretWarning),
	}
}

// Value returns the current value. Call it for each new connection or request instead of keeping the
// value. It costs a look at the file's time, and ctx bounds the function of NewProvidedSecret.
func (l *Live) Value(ctx context.Context) string {
	switch {
	case l.source == nil:
		return l.value
	case l.source.provide != nil:
		return l.provided(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if info, err := os.Stat(l.source.file); err == nil && unchanged(info, l.seen) {
		return l.value
	}
	value, info, err := readSecret(l.source.file)
	if err == nil {
		err = l.check(value)
	}
	if err != nil {
		l.seen = nil
		l.keep(err, slog.String("file", l.source.file))
		return l.value
	}
	if value != l.value {
		l.log.InfoContext(ctx, "secret was read again and has changed", slog.String("secret", l.name), slog.String("file", l.source.file))
	}
	l.value, l.seen = value, info
	if time.Since(info.ModTime()) < fileSettled {
		l.seen = nil
	}
	return l.value
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
		err = l.check(value)
	}
	if err != nil {
		l.keep(err)
		return l.value
	}
	l.value = value
	return value
}

func (l *Live) check(value string) error {
	if l.accept == nil || value == l.value {
		return nil
	}
	return l.accept(value)
}

func (l *Live) keep(err error, more ...slog.Attr) {
	l.warn.Warn(l.log, "secret can't be read again, so its last value stays in use", append(more, slog.String("secret", l.name), logs.Err(err))...)
}

// unchanged reports whether two looks at a path have found the same file with the same content. A
// replaced file, also behind a symbolic link, is another one.
func unchanged(now, before fs.FileInfo) bool {
	return before != nil && os.SameFile(now, before) && now.ModTime().Equal(before.ModTime()) && now.Size() == before.Size()
}

// readSecret returns the content of a file without the newlines at its end, and what was read.
func readSecret(path string) (value string, info fs.FileInfo, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil { // before the content: a later change is noticed
		return "", nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	value = strings.TrimRight(string(b), "\r\n")
	switch {
	case err != nil:
		return "", nil, err
	case value == "":
		return "", nil, fmt.Errorf("file %s is empty: it must contain the secret", path)
	case len(b) > maxSecretBytes:
		return "", nil, fmt.Errorf("file %s is larger than %d bytes, which no secret is", path, maxSecretBytes)
	}
	return value, info, nil
}
