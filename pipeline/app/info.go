package app

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
)

// collectors returns the metrics that say what runs: the build of the binary, and where the instance is. An
// empty label is none for Prometheus, so these have a value in any case.
func (h *Host) collectors(l *Loaded) []prometheus.Collector {
	b := h.build()
	return []prometheus.Collector{
		info("millrace_build_info", "1, with the version, the commit and the Go toolchain that the binary was built of as labels.",
			prometheus.Labels{"version": b.Version, "commit": cmp.Or(b.Commit, "unknown"), "go": b.Go}),
		info("millrace_instance_info", "1, with the profile of the settings and the environment of the instance as labels.",
			prometheus.Labels{"profile": cmp.Or(l.Document.Profile(), "none"), "environment": l.Settings.Environment}),
	}
}

func info(name, help string, labels prometheus.Labels) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	g.Set(1)
	return g
}
