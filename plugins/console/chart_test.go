package console

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline/console"
)

func line(values ...float64) (all []*float64) {
	for _, v := range values {
		if v < 0 {
			all = append(all, nil) // not known
			continue
		}
		all = append(all, &v)
	}
	return all
}

// What is not known is a gap, and a number between two gaps is a point.
func TestTheLineOfAChart(t *testing.T) {
	t.Parallel()
	require.Equal(t, "M50.0 117.0h0L150.0 3.0M350.0 60.0h0M550.0 117.0h0", path(line(0, 10, -1, 5, -1, 0), 10))
	require.Empty(t, path(line(-1, -1), 10))
}

func TestTheNumberAtTheTopOfAChart(t *testing.T) {
	t.Parallel()
	for most, top := range map[float64]float64{0: 1, 0.04: 0.1, 0.15: 0.2, 1: 1, 1.1: 1.5, 4.2: 5, 6.1: 8, 99: 100, 1234: 1500, math.Inf(1): 1} {
		require.InEpsilon(t, top, topOf(console.Series{Lines: []console.Line{{Values: line(0, most, -1)}}}), 1e-9, most)
	}
	require.EqualValues(t, 1, topOf(console.Series{}))
}

func TestTheNumbersOfAChart(t *testing.T) {
	t.Parallel()
	all := numbersOf(console.Series{Step: 15e9, Lines: []console.Line{{Name: "a", Values: line(0, 30, -1, 3)}, {Name: "b", Values: line(1, -1)}, {Name: "c", Values: line(-1)}}})
	texts := func(n numbers) []string { return []string{n.Name, n.Last.Text, n.Highest.Text, n.When, n.Mean.Text} }
	require.Equal(t, []string{"a", "3.0", "30", "00:00:15", "11"}, texts(all[0]))
	require.Equal(t, []string{"b", "unknown", "1.0", "00:00:00", "1.0"}, texts(all[1]))
	require.Equal(t, []string{"c", "unknown", "unknown", "", "unknown"}, texts(all[2]))
}

// Only 0 is the lowest character of a terminal, and what is not known is none.
func TestTheLineOfATerminal(t *testing.T) {
	t.Parallel()
	require.Equal(t, "▁▂ ▅█", spark(line(0, 0.01, -1, 5, 10), 10, 30))
	require.Equal(t, "▁▆", spark(line(0, 0, 10, 4), 10, 2), "each is a mean")
	require.Empty(t, spark(nil, 1, 30))
}

// Whatever the numbers are, a drawing stays within its edges.
func TestAChartStaysWithinItsEdges(t *testing.T) {
	t.Parallel()
	point := regexp.MustCompile(`[ML](-?[\d.]+) (-?[\d.]+)`)
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOf(rapid.OneOf(rapid.Float64Range(0, 1e12), rapid.Float64Range(0, 1e-6), rapid.Just(-1.0))).Draw(t, "values")
		s := console.Series{Lines: []console.Line{{Values: line(values...)}}}
		drawing := string(chartOf(s).Drawing)
		known := 0
		for _, v := range values {
			if v >= 0 {
				known++
			}
		}
		points := point.FindAllStringSubmatch(drawing[strings.Index(drawing, `class="line`):], -1)
		require.Len(t, points, known)
		for _, p := range points {
			x, err := strconv.ParseFloat(p[1], 64)
			require.NoError(t, err)
			y, err := strconv.ParseFloat(p[2], 64)
			require.NoError(t, err)
			require.True(t, x >= 0 && x <= chartWidth && y >= chartMargin-0.1 && y <= chartHeight-chartMargin+0.1, p[0])
		}
		require.LessOrEqual(t, len([]rune(spark(s.Lines[0].Values, highestOf(s), sparkWidth))), sparkWidth)
	})
}
