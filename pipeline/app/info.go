package app

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
)

// Simulating is implemented by a plugin that can run a simulated server inside the process, instead of calling the
// real one. Simulates is asked after all settings were checked. The answer is a label of millrace_instance_info.
type Simulating interface {
	Simulates() bool
}

func simulates(p pipeline.Plugin) bool {
	s, ok := p.(Simulating)
	return ok && s.Simulates()
}

// collectors returns the metrics that say what runs: the build of the binary, and where the instance is. An
// empty label is none for Prometheus, so these have a value in any case.
func (h *Host) collectors(l *Loaded) []prometheus.Collector {
	b := h.build()
	return []prometheus.Collector{
		info("millrace_build_info", "1, with the version, the commit and the Go toolchain that the binary was built of as labels.",
			prometheus.Labels{"version": b.Version, "commit": cmp.Or(b.Commit, "unknown"), "go": b.Go}),
		info("millrace_instance_info", "1, with the profile of the settings, the environment of the instance and whether a simulator is inside it as labels.",
			prometheus.Labels{
				"profile": cmp.Or(l.Document.Profile(), "none"), "environment": l.Settings.Environment,
				"simulator": strconv.FormatBool(slices.ContainsFunc(l.Plugins, simulates)),
			}),
	}
}

func info(name, help string, labels prometheus.Labels) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	g.Set(1)
	return g
}
