package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/stretchr/testify/require"
)

// sample is one sample of a series.
type sample struct {
	at time.Time
	v  float64
}

func (p sample) T() int64                      { return p.at.UnixMilli() }
func (p sample) F() float64                    { return p.v }
func (p sample) H() *histogram.Histogram       { return nil }
func (p sample) FH() *histogram.FloatHistogram { return nil }
func (p sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p sample) Copy() chunks.Sample           { return p }

// series is what Prometheus would hold of one series.
type series struct {
	labels labels.Labels
	points []chunks.Sample
}

// recorded is what Prometheus has scraped. It is a storage.Queryable for its engine.
type recorded struct {
	series map[string]*series
	types  map[string]model.MetricType // by the name of the family
	last   time.Time                   // of the newest sample
}

func newRecorded() *recorded {
	return &recorded{series: map[string]*series{}, types: map[string]model.MetricType{}}
}

func (r *recorded) add(l labels.Labels, at time.Time, v float64) {
	key := l.String()
	s := r.series[key]
	if s == nil {
		s = &series{labels: l}
		r.series[key] = s
	}
	s.points = append(s.points, sample{at, v})
	r.last = at
}

// scrape reads /metrics of an instance as Prometheus does it: with the labels of the target, and
// with up.
func (r *recorded) scrape(t *testing.T, base string) {
	t.Helper()
	resp, err := http.Get(base + "/metrics")
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, r.parse(text, strings.TrimPrefix(base, "http://"), time.Now()))
}

func (r *recorded) parse(text []byte, instance string, at time.Time) error {
	p := textparse.NewPromParser(text, labels.NewSymbolTable(), false)
	target := func(l labels.Labels) labels.Labels {
		return labels.NewBuilder(l).Set("job", "millrace").Set("instance", instance).Labels()
	}
	r.add(target(labels.FromStrings(model.MetricNameLabel, "up")), at, 1)
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch entry {
		case textparse.EntryType:
			name, kind := p.Type()
			r.types[string(name)] = kind
		case textparse.EntrySeries:
			var l labels.Labels
			p.Labels(&l)
			_, _, v := p.Series()
			r.add(target(l), at, v)
		}
	}
}

// sinceZero lets every counter begin with 0 at a time before the first scrape: what has happened by
// then has happened since.
func (r *recorded) sinceZero(began time.Time) {
	for _, s := range r.series {
		if r.kind(s.labels.Get(model.MetricNameLabel)) == model.MetricTypeCounter {
			s.points = slices.Insert(s.points, 0, chunks.Sample(sample{began, 0}))
		}
	}
}

// stretched returns the newest samples as if nothing had changed in the past: one every half
// minute.
func (r *recorded) stretched(past time.Duration) *recorded {
	out := &recorded{series: make(map[string]*series, len(r.series)), types: r.types, last: r.last}
	for key, s := range r.series {
		newest := s.points[len(s.points)-1].F()
		points := make([]chunks.Sample, 0, past/(30*time.Second)+1)
		for at := r.last.Add(-past); !at.After(r.last); at = at.Add(30 * time.Second) {
			points = append(points, sample{at, newest})
		}
		out.series[key] = &series{s.labels, points}
	}
	return out
}

// copied has the samples in common until one of both changes them.
func (r *recorded) copied() *recorded {
	out := &recorded{series: make(map[string]*series, len(r.series)), types: r.types, last: r.last}
	for key, s := range r.series {
		out.series[key] = &series{s.labels, s.points}
	}
	return out
}

// change gives every series that the selector matches another past: v of how long ago a sample is
// and of what it was. It returns how many series that were.
func (r *recorded) change(t *testing.T, selector string, v func(ago time.Duration, was float64) float64) int {
	t.Helper()
	matchers, err := parser.ParseMetricSelector(selector)
	require.NoError(t, err, selector)
	matched := r.match(matchers)
	for _, s := range matched {
		s.points = slices.Clone(s.points)
		for i, p := range s.points {
			at := time.UnixMilli(p.T())
			s.points[i] = sample{at, v(r.last.Sub(at), p.F())}
		}
	}
	return len(matched)
}

// match returns the series that all matchers match, in one order.
func (r *recorded) match(matchers []*labels.Matcher) []*series {
	var found []*series
	for _, s := range r.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b *series) int { return labels.Compare(a.labels, b.labels) })
	return found
}

// sum returns the sum of the newest values of what the selector matches.
func (r *recorded) sum(t *testing.T, selector string) (sum float64) {
	t.Helper()
	matchers, err := parser.ParseMetricSelector(selector)
	require.NoError(t, err, selector)
	for _, s := range r.match(matchers) {
		sum += s.points[len(s.points)-1].F()
	}
	return sum
}

// Querier implements storage.Queryable.
func (r *recorded) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		return &seriesSet{left: r.match(matchers)}
	}}, nil
}

type seriesSet struct {
	now  *series
	left []*series
}

func (s *seriesSet) Next() bool {
	if len(s.left) == 0 {
		return false
	}
	s.now, s.left = s.left[0], s.left[1:]
	return true
}
func (s *seriesSet) At() storage.Series                { return storage.NewListSeries(s.now.labels, s.now.points) }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

func newEngine(t *testing.T) *promql.Engine {
	e := promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute})
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// eval evaluates a query as Prometheus does it, and returns the labels and values of the result.
func eval(ctx context.Context, e *promql.Engine, r *recorded, query string, at time.Time) (promql.Vector, error) {
	q, err := e.NewInstantQuery(ctx, r, nil, query, at)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	result := q.Exec(ctx)
	if result.Err != nil {
		return nil, result.Err
	}
	for note := range result.Warnings {
		return nil, fmt.Errorf("the engine warns: %s", note)
	}
	if scalar, ok := result.Value.(promql.Scalar); ok {
		return promql.Vector{{T: scalar.T, F: scalar.V}}, nil
	}
	vector, err := result.Vector()
	return slices.Clone(vector), err // the query's memory is used again
}

// misfits compares a query with the scraped series. It returns selectors without a result, labels
// that no series has, and rates of gauges.
func misfits(r *recorded, query string) []string {
	expr, err := parser.ParseExpr(query)
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			if len(r.match(n.LabelMatchers)) == 0 {
				wrong = append(wrong, fmt.Sprintf("nothing is scraped that %s selects", n))
			}
			if kind := r.kind(n.Name); rated(path) && kind != model.MetricTypeCounter && kind != model.MetricTypeHistogram {
				wrong = append(wrong, fmt.Sprintf("%s is a %s, not a counter", n.Name, cmp.Or(kind, "stranger")))
			}
		case *parser.AggregateExpr:
			if !n.Without {
				wrong = append(wrong, r.unknownLabels(n.Expr, n.Grouping)...)
			}
		case *parser.BinaryExpr:
			if n.VectorMatching != nil && n.VectorMatching.On {
				wrong = append(wrong, r.unknownLabels(n.LHS, n.VectorMatching.MatchingLabels)...)
				wrong = append(wrong, r.unknownLabels(n.RHS, n.VectorMatching.MatchingLabels)...)
			}
		}
		return nil
	})
	return wrong
}

// unknownLabels returns the labels that no series in expr has.
func (r *recorded) unknownLabels(expr parser.Node, wanted []string) []string {
	has := map[string]bool{}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			for _, s := range r.match(n.LabelMatchers) {
				s.labels.Range(func(l labels.Label) { has[l.Name] = true })
			}
		case *parser.Call:
			if made, ok := n.Args[min(1, len(n.Args)-1)].(*parser.StringLiteral); ok && n.Func.Name == "label_replace" {
				has[made.Val] = true
			}
		}
		return nil
	})
	var wrong []string
	for _, label := range wanted {
		if !has[label] {
			wrong = append(wrong, fmt.Sprintf("no series in %s has the label %s", expr, label))
		}
	}
	return wrong
}

// kind returns the type of the family that a series' name belongs to.
func (r *recorded) kind(name string) model.MetricType {
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		if family, ok := strings.CutSuffix(name, suffix); ok && r.types[family] != "" {
			return r.types[family]
		}
	}
	return ""
}

// rated reports whether the selector at the end of path is what a rate is taken of.
func rated(path []parser.Node) bool {
	return slices.ContainsFunc(path, func(n parser.Node) bool {
		call, ok := n.(*parser.Call)
		return ok && slices.Contains([]string{"rate", "irate", "increase"}, call.Func.Name)
	})
}
