package app

import (
	"github.com/prometheus/client_golang/prometheus"
)

// collectors returns the metrics that say what runs: the build of the binary, and where its settings are for.
func (h *Host) collectors(l *Loaded) []prometheus.Collector {
	b := h.build()
	return []prometheus.Collector{
		info("millrace_build_info", "1, with the version, the commit and the Go toolchain that the binary was built of as labels.",
			prometheus.Labels{"version": b.Version, "commit": b.Commit, "go": b.Go}),
		info("millrace_instance_info", "1, with the profile of the settings (empty: none) and the environment of the instance as labels.",
			prometheus.Labels{"profile": l.Document.Profile(), "environment": l.Settings.Environment}),
	}
}

func info(name, help string, labels prometheus.Labels) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	g.Set(1)
	return g
}
