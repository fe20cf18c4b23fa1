package logs_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/logs"
)

func TestAnErrorIsOneLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                         "",
		"refused":                  "refused",
		"price: got -1\ncustomer:": "price: got -1; customer:",
		"connect:\n\ta:1: refused\n\ta:1: refused\n\tb:1: refused\n": "connect: a:1: refused; b:1: refused",
		"a\r\n\n  b": "a; b",
	} {
		require.Equal(t, want, logs.OneLine(text), "%q", text)
	}
}

// older is how clients joined errors before errors.Join.
type older []error

func (o older) Error() string          { return errors.Join(o...).Error() }
func (o older) WrappedErrors() []error { return o }

func TestEachCauseHasALine(t *testing.T) {
	t.Parallel()
	a, b, c := errors.New("a"), errors.New("b"), errors.New("c")
	for name, tc := range map[string]struct {
		err  error
		want []logs.Line
	}{
		"nothing":             {nil, nil},
		"one":                 {fmt.Errorf("open: %w", a), []logs.Line{{0, "open: a"}}},
		"joined":              {errors.Join(a, b), []logs.Line{{0, "a"}, {0, "b"}}},
		"wrapped":             {fmt.Errorf("open x: %w", fmt.Errorf("no answer: %w", errors.Join(a, nil, b))), []logs.Line{{0, "open x: no answer:"}, {1, "a"}, {1, "b"}}},
		"two wrapped":         {fmt.Errorf("%w: open x: %w", c, errors.Join(a, b)), []logs.Line{{0, "c: open x:"}, {1, "a"}, {1, "b"}}},
		"joined and wrapped":  {errors.Join(fmt.Errorf("start: %w", errors.Join(a, b)), fmt.Errorf("stop: %w", c)), []logs.Line{{0, "start:"}, {1, "a"}, {1, "b"}, {0, "stop: c"}}},
		"a join of one":       {fmt.Errorf("start: %w", errors.Join(errors.Join(a, b))), []logs.Line{{0, "start:"}, {1, "a"}, {1, "b"}}},
		"below each other":    {fmt.Errorf("x: %w", errors.Join(fmt.Errorf("y: %w", errors.Join(a, b)), c)), []logs.Line{{0, "x:"}, {1, "y:"}, {2, "a"}, {2, "b"}, {1, "c"}}},
		"attempts":            {fmt.Errorf("open: %w", errors.Join(a, a, b)), []logs.Line{{0, "open:"}, {1, "a"}, {1, "b"}}},
		"of an older client":  {fmt.Errorf("open: %w", older{a, b}), []logs.Line{{0, "open:"}, {1, "a"}, {1, "b"}}},
		"a driver's own form": {errors.New("connect:\n\ta\n\ta\n\tb"), []logs.Line{{0, "connect:"}, {1, "a"}, {1, "b"}}},
		"text after it":       {fmt.Errorf("open: %w (try again)", errors.Join(a, b)), []logs.Line{{0, "open: a"}, {1, "b (try again)"}}},
		"an empty one":        {errors.New(""), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, logs.Lines(tc.err))
		})
	}
}
