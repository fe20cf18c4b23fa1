package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// ill is a toy that offers checks.
type ill struct {
	*toy
	checks []operate.Check
	err    error
}

func (p ill) Register(r *pipeline.Registry) error {
	r.Offer(p)
	return p.toy.Register(r)
}

func (p ill) Examinations() []operate.Examination {
	return []operate.Examination{{Place: "wheel", Open: func(context.Context) ([]operate.Examine, func(), error) {
		return []operate.Examine{{What: "hub", Read: func(context.Context) ([]operate.Check, error) { return p.checks, p.err }}}, nil, nil
	}}}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	ok := operate.Check{Level: operate.OK, Text: "turns"}
	warning := operate.Check{Level: operate.Warn, Text: "turns slowly", Remedy: "oil it", Runbook: "oil"}
	failure := operate.Check{Level: operate.Fail, Text: "is \x1b[2Jbroken", Remedy: "mend it"}
	for name, tc := range map[string]struct {
		checks []operate.Check
		err    error
		strict bool
		code   int
		want   string
	}{
		"all is well":    {[]operate.Check{ok}, nil, false, app.ExitOK, "ok    wheel hub: turns\n"},
		"a warning":      {[]operate.Check{warning}, nil, false, app.ExitOK, "warn  wheel hub: turns slowly; oil it (runbook: oil)\n"},
		"it is strict":   {[]operate.Check{warning}, nil, true, app.ExitBad, "warn  wheel hub: turns slowly; oil it (runbook: oil)\n"},
		"a failure":      {[]operate.Check{ok, failure}, nil, false, app.ExitBad, "ok    wheel hub: turns\nfail  wheel hub: is \ufffd[2Jbroken; mend it\n"},
		"a server away":  {[]operate.Check{ok, failure}, fmt.Errorf("wheel hub: %w: refused", pipeline.ErrUnavailable), false, app.ExitUnavailable, "fail  wheel hub: server unavailable: refused\n"},
		"it can't tell":  {nil, context.Canceled, false, app.ExitBad, "fail  wheel hub: context canceled\n"},
		"nothing to say": {nil, nil, false, app.ExitOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"doctor"}
			if tc.strict {
				args = append(args, "--strict")
			}
			p := newToy()
			o := options(p, args...)
			o.Plugins = []pipeline.Plugin{ill{p, tc.checks, tc.err}}
			text := run(t.Context(), o)
			require.Contains(t, text.stdout, tc.want)
			require.Regexp(t, `\n\n\d+ ok, \d+ warnings?, \d+ failures?\n$`, text.stdout)
			require.Contains(t, text.stdout, "  process toolchain: built with go", "the process is examined in every binary")
			require.Empty(t, text.stderr)
			require.Empty(t, p.order.all(), "no service is started")

			o.Args = append(o.Args, "--json")
			asJSON := run(t.Context(), o)
			var d operate.Diagnosis
			require.NoError(t, json.Unmarshal([]byte(asJSON.stdout), &d))
			require.Len(t, d.Checks, d.OK+d.Warnings+d.Failures)
			if tc.strict && tc.code == app.ExitBad || !tc.strict { // without --strict the machine's own warnings do not count
				require.Equal(t, tc.code, text.code)
				require.Equal(t, tc.code, asJSON.code)
			}
		})
	}
}

// Programs read the names of the fields.
func TestDoctorAsJSON(t *testing.T) {
	t.Parallel()
	p := newToy()
	o := options(p, "doctor", "--json")
	o.Plugins = []pipeline.Plugin{ill{p, []operate.Check{
		{Level: operate.OK, Text: "turns"}, {Level: operate.Warn, Text: "turns slowly", Remedy: "oil it", Runbook: "oil"},
	}, fmt.Errorf("%w: refused", pipeline.ErrUnavailable)}}
	r := run(t.Context(), o)
	require.Equal(t, app.ExitUnavailable, r.code)
	var d operate.Diagnosis
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &d))
	d.Checks = slices.DeleteFunc(d.Checks, func(c operate.Check) bool { // these are of the machine
		is := strings.HasPrefix(c.Name, "process ")
		switch {
		case is && c.Level == operate.OK:
			d.OK--
		case is && c.Level == operate.Warn:
			d.Warnings--
		case is:
			d.Failures--
		}
		return is
	})
	text, err := json.MarshalIndent(d, "", "  ")
	require.NoError(t, err)
	golden(t, "doctor.json", string(text)+"\n")
}
