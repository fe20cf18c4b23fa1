package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-analyze/charts"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace-io/millrace/plugins/streams"
)

// sample is the state of a campaign at one time.
type sample struct {
	at      time.Duration
	settled int
	lag     int64 // records after the committed offsets
	pending int64 // entries delivered and not acknowledged
	entries int64 // of the stream
	memory  int64 // of the process, in bytes
	redis   int64 // of Redis, in bytes
}

// compareMillion pays the largest campaign and plots it. pay refuses a campaign that lost or
// repeated a payout.
func compareMillion(ctx context.Context, t *trial) {
	var samples []sample
	watch := func(ctx context.Context, r *run) { samples = append(samples, r.sample(ctx)) }
	r := t.campaigns(ctx, campaign{label: "1,000,000 targets", targets: t.million, latency: 5 * time.Millisecond, watch: watch})
	var longest int64
	for _, one := range samples {
		longest = max(longest, one.entries)
	}
	t.plots = must(plot(samples))
	t.figure("million-paid", float64(t.million), float64(t.million))
	t.figure("million-memory", float64(r[0].Peak)/(1<<20))
	t.figure("million-stream", float64(longest), float64(streams.DefaultConfig().MaxLen))
}

func (r *run) sample(ctx context.Context) sample {
	stream, group := point().StreamPrefix()+strconv.Itoa(promotion), point().GroupPrefix()+strconv.Itoa(promotion)
	s := sample{
		at: time.Since(r.began), settled: r.settledCount(ctx), lag: int64(r.million), entries: must(r.redis.XLen(ctx, stream).Result()),
		memory: r.processes[0].memory(resident), redis: r.redisMemory(ctx),
	}
	must(r.kafka.FetchOffsets(ctx, point().Group())).Each(func(o kadm.OffsetResponse) { s.lag -= max(0, o.At) })
	// Before the first entry there is no group, and nothing is pending.
	if pending, err := r.redis.XPending(ctx, stream, group).Result(); err == nil {
		s.pending = pending.Count
	}
	return s
}

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
	svg, err := painter.Bytes()
	// A line of the file has an element, instead of a point of a curve.
	return []byte(strings.NewReplacer("\nL ", " L ", "><", ">\n<").Replace(string(svg))), err
}
