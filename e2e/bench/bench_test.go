package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// The test binary is also the bare loop, the stock flow and the watchers.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && programs()[os.Args[1]] != nil {
		main()
		return
	}
	os.Exit(m.Run())
}

// All parts of the benchmark run with small counts. Nothing is asserted about times.
func TestTheBenchmarkRuns(t *testing.T) {
	tier.Rest(t)
	var out pipelinetest.Buffer
	dir := filepath.Join("..", "..", ".services", "bench")
	err := command(t.Context(), []string{
		"-quick", "-rows", "path,effects,limit,consume,publish,window,idle,jobs,room", "-targets", "100", "-dir", dir, "-pages", t.TempDir(),
	}, &out)
	if errors.Is(err, errNoServer) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	require.NoError(t, err, "%s", out.String())
	require.NotContains(t, out.String(), "no figure")
	require.Equal(t, 1, strings.Count(out.String(), "stock Watermill parts"), "%s", out.String())
	require.Contains(t, out.String(), "is not written")
}

func TestACampaignThatLostOrRepeatedAPayoutIsRefused(t *testing.T) {
	t.Parallel()
	good := totals{Rows: 3, Paid: 3, Attempts: 3, Charged: 3, Executions: 3}
	require.NoError(t, good.balance(3))
	for name, broken := range map[string]totals{
		"a payout is missing":       {Rows: 2, Paid: 2, Attempts: 2, Charged: 2, Executions: 2},
		"a payout failed":           {Rows: 3, Paid: 2, Attempts: 3, Charged: 3, Executions: 3},
		"a payout was sent twice":   {Rows: 3, Paid: 3, Attempts: 4, Charged: 3, Executions: 3},
		"a target has no charge":    {Rows: 3, Paid: 3, Attempts: 3, Charged: 2, Executions: 2},
		"a target has two charges":  {Rows: 3, Paid: 3, Attempts: 3, Charged: 3, Executions: 4, DoubleCharged: 1},
		"one has none, another two": {Rows: 3, Paid: 3, Attempts: 3, Charged: 2, Executions: 3, DoubleCharged: 1},
	} {
		require.ErrorContains(t, broken.balance(3), "refused", name)
	}
}

func TestTheReadmeHasMedianSpreadAndVerdict(t *testing.T) {
	t.Parallel()
	rate := row{key: "rate", what: "rate", against: "peer", unit: "×", goal: 2, tried: "More."}
	allocations := row{key: "x-allocations", what: "allocations", against: "committed table", unit: "×", goal: 1.05, atMost: true, why: "of a test", tried: "Less."}
	short := row{key: "short", what: "memory", against: none, unit: " MB", goal: 5, atMost: true, tried: "Less."}
	c := comparison{name: "both", rows: []row{rate, allocations, short}}
	r := report{machine: "- 2 cores\n", took: 90 * time.Minute, comparisons: []outcome{{comparison: c, pairs: map[string][]pair{
		"rate":          {{ours: 500, peer: 100}, {ours: 300, peer: 100}, {ours: 100, peer: 100}},
		"x-allocations": {{ours: 30, peer: 20}},
		"short":         {{ours: 6}},
	}}}}
	require.NoError(t, r.failed())
	path := filepath.Join(t.TempDir(), "README.md")
	svg, err := plot([]sample{{at: time.Second, settled: 10, lag: 5}, {at: 2 * time.Second, settled: 30, memory: 1 << 20}})
	require.NoError(t, err)
	require.Contains(t, string(svg), "Payouts per second")
	require.NoError(t, r.write(path, svg))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), "| rate | peer | 300 / 100 | 3.00× (1.00–5.00, 3 runs) | ≥ 2.00× | met |")
	require.Contains(t, string(text), "| 30.0 / 20.0 | 1.50× | ≤ 1.05× | short by 0.45× because of a test |")
	require.Contains(t, string(text), "\n**Allocations; memory.**\nLess.\n")
	require.Equal(t, 1, strings.Count(string(text), "Less."))
	require.NotContains(t, string(text), "More.", "a goal that is met needs no reason")
	require.Contains(t, string(text), "1h30m0s")
	require.InDelta(t, 30, (&environment{results: filepath.Dir(path)}).committed("x-allocations"), 0.01, "the next run compares with this one")
	require.FileExists(t, filepath.Join(filepath.Dir(path), "million.svg"))
}

func TestAPageHasItsRowsOnly(t *testing.T) {
	t.Parallel()
	of := func(name, what string) outcome {
		c := comparison{name: name, rows: []row{{key: name, what: what, against: none, unit: " ms", goal: 20, atMost: true}}}
		return outcome{comparison: c, pairs: map[string][]pair{name: {{ours: 15}}}}
	}
	e := &environment{tables: map[string][]*table{}}
	cpu := table{title: "CPU", text: "µs", head: []string{"run", "µs"}}
	e.note(jobsPage, cpu, "one job", "1.00")
	e.note(jobsPage, cpu, "many jobs", "2.00")
	r := report{tables: e.tables, comparisons: []outcome{of("path", "payouts"), of("jobs-one", "delay"), of("room-live", "promotion")}}
	dir := t.TempDir()
	for page, text := range map[string]string{jobsPage: "| delay | – | 15.0 | 15.0 ms | ≤ 20.0 ms | met |", mainPage: "| payouts |", roomPage: "| promotion |"} {
		require.NoError(t, r.write(filepath.Join(dir, page), nil))
		written, err := os.ReadFile(filepath.Join(dir, page))
		require.NoError(t, err)
		require.Contains(t, string(written), text)
		require.Equal(t, 1, strings.Count(string(written), " met |"))
		require.Equal(t, page == jobsPage, strings.Contains(string(written), "\n## CPU\n\nµs\n\n| run | µs |\n|---|---|\n| one job | 1.00 |\n| many jobs | 2.00 |\n"))
	}
	selected, err := chosen("jobs")
	require.NoError(t, err)
	require.True(t, complete(selected, jobsPage))
	require.False(t, complete(selected, mainPage))
	require.False(t, complete(selected[1:], jobsPage))
}

func TestAFailedComparisonWritesNoReadme(t *testing.T) {
	t.Parallel()
	e := &environment{log: &pipelinetest.Buffer{}}
	c := comparison{name: "x", rows: []row{{key: "a", what: "a"}, {key: "b", what: "b"}}}
	for name, measure := range map[string]func(context.Context, *trial){
		"an error":         func(context.Context, *trial) { check(errors.New("refused")) },
		"a missing figure": func(_ context.Context, t *trial) { t.figure("a", 1) },
	} {
		c.measure = measure
		r := report{comparisons: []outcome{e.compare(t.Context(), c, quick(), 1)}}
		require.Error(t, r.failed(), name)
		require.Contains(t, r.text(), "no figure", name)
	}
}

func TestComparisonsAreSelectedByNameOrRow(t *testing.T) {
	t.Parallel()
	picked, err := chosen("publish-1-far,path")
	require.NoError(t, err)
	require.Len(t, picked, 2)
	_, err = chosen("paht")
	require.ErrorContains(t, err, "paht")
	keys := map[string]bool{}
	for _, c := range comparisons() {
		for _, key := range c.keys() {
			require.False(t, keys[key], "two rows named %s", key)
			keys[key] = true
		}
	}
}

func TestTheTimeOfAScriptIsThatOfOneCall(t *testing.T) {
	t.Parallel()
	before := commandTimes("# Commandstats\r\ncmdstat_evalsha:calls=2,usec=100,usec_per_call=50.00,rejected_calls=0\r\ncmdstat_get:calls=1,usec=9,usec_per_call=9.00\r\n")
	require.Equal(t, map[string]commandTime{"evalsha": {2, 100}, "get": {1, 9}}, before)
	s := newScriptTimes()
	s.add(scriptTick, commandTime{3, 1600}.since(before["evalsha"]), 4*time.Millisecond)
	s.add(scriptTick, commandTime{2, 90}, 4*time.Millisecond) // another script ran in between
	require.Equal(t, callTimes{server: []float64{1.5}, client: []float64{4, 4}}, s.of(scriptTick))
	require.InDelta(t, 3, quantile([]float64{4, 2, 1, 3, 5}, 0.5), 0)
	require.Zero(t, quantile(nil, 0.5))
}

func TestCallsAreCountedByTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c ticks
		require.Empty(t, c.all())
		c.note()
		c.note()
		time.Sleep(2*tick + tick/2)
		c.note()
		time.Sleep(tick)
		require.Equal(t, []int{2, 0, 1, 0}, c.all())
	})
	require.InDelta(t, 15, perSecond([]int{2, 0, 1, 3}), 0)
}

func TestAMeterRefusesAnotherNumberOfMessages(t *testing.T) {
	t.Parallel()
	m := newMeter(1, 0)
	require.ErrorContains(t, try(func() { m.result() }), "refused")
}

func TestATrialEndsAtItsFirstFailureAndCleansUp(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	var ended []string
	end := func(name string) func() { return func() { ended = append(ended, name) } }
	e := &environment{log: &pipelinetest.Buffer{}}
	measure := func(ctx context.Context, t *trial) {
		t.cleanup(end("trial"))
		t.part(func(t *trial) {
			t.cleanup(end("server"))
			t.cleanup(end("client"))
		})
		ended = append(ended, "part")
		while(ctx, func(ctx context.Context) {
			<-ctx.Done() // the loop ends it
			check(ctx.Err())
		}, func(ctx context.Context) {
			together(ctx, 2, func(ctx context.Context, i int) {
				if i == 0 {
					must(0, broken)
				}
				check(sleep(ctx, time.Hour))
			})
		})
		ended = append(ended, "never")
	}
	o := e.compare(t.Context(), comparison{name: "x", measure: measure}, quick(), 3)
	require.ErrorIs(t, o.err, broken)
	require.Regexp(t, `^x: bench_test.go:[0-9]+: broken$`, o.err.Error(), "the line that failed")
	require.Equal(t, []string{"client", "server", "part", "trial"}, ended)
	interrupted := func(ctx context.Context) { check(sleep(ctx, time.Hour)) }
	require.NoError(t, try(func() { while(t.Context(), func(context.Context) {}, interrupted) }), "the end interrupts a loop")
	require.PanicsWithValue(t, "another", func() { _ = try(func() { panic("another") }) })
}
