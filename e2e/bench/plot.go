package main

import (
	"fmt"

	"github.com/go-analyze/charts"
)

// plot draws the samples of a campaign as one SVG with four panels.
func plot(samples []sample) ([]byte, error) {
	const width, height = 1000, 320
	panels := []struct {
		title  string
		legend []string
		values func(before, s sample) []float64
	}{
		{"Payouts per second", []string{"settled"}, func(before, s sample) []float64 {
			return []float64{float64(s.settled-before.settled) / (s.at - before.at).Seconds()}
		}},
		{"Waiting", []string{"records in Kafka (lag)", "entries in the stream"}, func(_, s sample) []float64 {
			return []float64{float64(s.lag), float64(s.entries)}
		}},
		{"Pending entries", []string{"delivered, not acknowledged"}, func(_, s sample) []float64 {
			return []float64{float64(s.pending)}
		}},
		{"Memory (MB)", []string{"process", "Redis"}, func(_, s sample) []float64 {
			return []float64{float64(s.memory) / (1 << 20), float64(s.redis) / (1 << 20)}
		}},
	}
	painter := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: width, Height: height * len(panels)})
	for i, panel := range panels {
		data := make([][]float64, len(panel.legend))
		seconds := make([]string, len(samples))
		var before sample
		for n, s := range samples {
			for line, value := range panel.values(before, s) {
				data[line] = append(data[line], value)
			}
			seconds[n] = fmt.Sprintf("%.0f s", s.at.Seconds())
			before = s
		}
		option := charts.NewLineChartOptionWithData(data)
		option.Title.Text = panel.title
		option.Legend.SeriesNames = panel.legend
		option.XAxis.Labels = seconds
		option.XAxis.LabelCount = 12
		option.Symbol.Shape = charts.SymbolNone
		box := charts.NewBox(0, i*height, width, (i+1)*height)
		if err := painter.Child(charts.PainterBoxOption(box)).LineChart(option); err != nil {
			return nil, err
		}
	}
	return painter.Bytes()
}
