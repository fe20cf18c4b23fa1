package setting_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// follow returns the current value of a file, and what is logged about it.
func follow(t *testing.T, file string, accept func(string) error) (value func() string, logged *strings.Builder) {
	t.Helper()
	var s setting.Secret
	require.NoError(t, s.UnmarshalText([]byte("file:"+file)))
	logged = &strings.Builder{}
	live := s.Live("plugins.redis.password", slog.New(slog.NewTextHandler(logged, nil)), accept)
	return func() string { return live.Value(t.Context()) }, logged
}

func write(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

func TestASecretFileIsReadAgain(t *testing.T) {
	t.Parallel()
	t.Run("written in place, with the same size and time", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "password")
		write(t, file, "one\n")
		value, logged := follow(t, file, nil)
		require.Equal(t, "one", value())
		before, err := os.Stat(file)
		require.NoError(t, err)
		write(t, file, "two\n")
		require.NoError(t, os.Chtimes(file, before.ModTime(), before.ModTime()))
		require.Equal(t, "two", value())
		require.Contains(t, logged.String(), "has changed")
		require.NotContains(t, logged.String(), "two")
	})
	t.Run("of an older time", func(t *testing.T) { // as a restored one
		t.Parallel()
		file := filepath.Join(t.TempDir(), "password")
		write(t, file, "one")
		value, _ := follow(t, file, nil)
		day := time.Now().Add(-24 * time.Hour)
		require.NoError(t, os.Chtimes(file, day, day))
		require.Equal(t, "one", value())
		write(t, file, "two")
		require.NoError(t, os.Chtimes(file, day.Add(-time.Hour), day.Add(-time.Hour)))
		require.Equal(t, "two", value())
	})
	t.Run("of another size and the same old time", func(t *testing.T) { // as a copy that keeps times
		t.Parallel()
		file := filepath.Join(t.TempDir(), "password")
		day := time.Now().Add(-24 * time.Hour)
		write(t, file, "one")
		require.NoError(t, os.Chtimes(file, day, day))
		value, _ := follow(t, file, nil)
		require.Equal(t, "one", value())
		write(t, file, "three")
		require.NoError(t, os.Chtimes(file, day, day))
		require.Equal(t, "three", value())
	})
	t.Run("replaced by a rename", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "password")
		day := time.Now().Add(-24 * time.Hour)
		write(t, file, "one")
		require.NoError(t, os.Chtimes(file, day, day))
		value, _ := follow(t, file, nil)
		require.Equal(t, "one", value())
		write(t, file+".new", "two")
		require.NoError(t, os.Chtimes(file+".new", day, day))
		require.NoError(t, os.Rename(file+".new", file))
		require.Equal(t, "two", value())
	})
	t.Run("of a volume of Kubernetes", func(t *testing.T) {
		t.Parallel()
		// password -> ..data/password, ..data -> a folder per version; the link ..data is replaced.
		dir := t.TempDir()
		day := time.Now().Add(-24 * time.Hour)
		version := func(name, text string) {
			require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
			write(t, filepath.Join(dir, name, "password"), text)
			require.NoError(t, os.Chtimes(filepath.Join(dir, name, "password"), day, day))
			require.NoError(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
			require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		}
		version("..2026_1", "one")
		require.NoError(t, os.Symlink("..data/password", filepath.Join(dir, "password")))
		value, _ := follow(t, filepath.Join(dir, "password"), nil)
		require.Equal(t, "one", value())
		version("..2026_2", "two")
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "..2026_1")))
		require.Equal(t, "two", value())
	})
}

func TestTheLastGoodSecretStaysInUse(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, file string){
		"missing": func(t *testing.T, file string) { require.NoError(t, os.Remove(file)) },
		"empty":   func(t *testing.T, file string) { write(t, file, "\n") },
		"refused": func(t *testing.T, file string) { write(t, file, "short") },
		"huge":    func(t *testing.T, file string) { write(t, file, strings.Repeat("a", 70_000)) },
		"a folder": func(t *testing.T, file string) {
			require.NoError(t, os.Remove(file))
			require.NoError(t, os.Mkdir(file, 0o700))
		},
		"no symlink": func(t *testing.T, file string) {
			require.NoError(t, os.Remove(file))
			require.NoError(t, os.Symlink("gone", file))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "password")
			write(t, file, "a long password")
			value, logged := follow(t, file, func(s string) error {
				if len(s) < 8 {
					return errors.New("must have 8 characters")
				}
				return nil
			})
			require.Equal(t, "a long password", value())
			spoil(t, file)
			for range 100 {
				require.Equal(t, "a long password", value())
			}
			require.Equal(t, 1, strings.Count(logged.String(), "its last value stays in use"), "%s", logged)
			require.Contains(t, logged.String(), "secret=plugins.redis.password")
			require.Contains(t, logged.String(), file)
			require.NotContains(t, logged.String(), "short\"")
			require.NoError(t, os.RemoveAll(file))
			write(t, file, "another password")
			require.Equal(t, "another password", value())
		})
	}
}

func TestAnEmptySecretFileIsAMistake(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	write(t, file, "\n")
	var s setting.Secret
	err := s.UnmarshalText([]byte("file:" + file))
	require.ErrorContains(t, err, "is empty")
	require.True(t, setting.NotHere(err.Error()))
	require.Empty(t, s.Reveal())
}

func TestAProvidedSecret(t *testing.T) {
	t.Parallel()
	value, err := "one", error(nil)
	s := setting.NewProvidedSecret("", func(context.Context) (string, error) { return value, err })
	require.False(t, s.IsZero())
	require.Equal(t, "[redacted]", s.String())
	live := s.Live("token", nil, nil)
	require.Equal(t, "one", live.Value(t.Context()))
	value = "two"
	require.Equal(t, "two", live.Value(t.Context()))
	err = errors.New("no token service")
	require.Equal(t, "two", live.Value(t.Context()))
	err, value = nil, ""
	require.Equal(t, "two", live.Value(t.Context()))
}

// Many connections are opened at the same time while the token changes.
func TestAProvidedSecretIsSharedByConnections(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	s := setting.NewProvidedSecret("", func(context.Context) (string, error) { return strconv.FormatInt(n.Add(1), 10), nil })
	live := s.Live("token", nil, func(string) error { return nil })
	var connections sync.WaitGroup
	for range 8 {
		connections.Go(func() {
			for range 100 {
				require.NotEmpty(t, live.Value(t.Context()))
			}
		})
	}
	connections.Wait()
	require.EqualValues(t, 800, n.Load())
}

func TestALiteralSecretNeverChanges(t *testing.T) {
	t.Parallel()
	require.Equal(t, "literal", setting.NewSecret("literal").Live("token", nil, nil).Value(t.Context()))
}

func TestALiveFileKeepsWhatItHad(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "numbers")
	write := func(text string) {
		require.NoError(t, os.WriteFile(file+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	var out strings.Builder
	open := func() (*setting.LiveFile[int], error) {
		return setting.NewLiveFile("a.number", file, 4, slog.New(slog.NewTextHandler(&out, nil)), func(text []byte) (int, error) { return strconv.Atoi(string(text)) })
	}
	_, err := open()
	require.ErrorIs(t, err, fs.ErrNotExist)
	write("x")
	_, err = open()
	require.ErrorContains(t, err, "invalid syntax")
	write("1")
	live, err := open()
	require.NoError(t, err)
	require.Equal(t, 1, live.Value(t.Context()))
	require.Empty(t, out.String())
	write("2")
	require.Equal(t, 2, live.Value(t.Context()))
	require.Contains(t, out.String(), `msg="file was read again and has changed" of=a.number file=`+file)
	out.Reset()
	write("x")
	require.Equal(t, 2, live.Value(t.Context()))
	require.Contains(t, out.String(), `level=WARN msg="file can't be read again, so what it had before stays in use" of=a.number file=`+file)
	write("12345")
	require.Equal(t, 2, live.Value(t.Context()), "it is too long")
	require.NoError(t, os.Remove(file))
	require.Equal(t, 2, live.Value(t.Context()))
	require.Equal(t, 1, strings.Count(out.String(), "level=WARN"), "once a minute")
	write("3")
	require.Equal(t, 3, live.Value(t.Context()))
}
