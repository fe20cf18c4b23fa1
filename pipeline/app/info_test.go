package app_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Every process says in its metrics which build it is, and where it runs.
func TestMetricsNameTheBuildAndTheInstance(t *testing.T) {
	t.Parallel()
	p, seen := newToy(), make(chan []string, 1)
	p.commands = command(func(h *app.Host, cmd *cobra.Command) error {
		return h.Run(cmd.Context(), cmd, app.RunOptions{Ready: func(_ context.Context, r *app.Running) error {
			reg := prometheus.NewPedanticRegistry()
			for _, c := range r.Registry.Collectors() {
				if err := reg.Register(c); err != nil {
					return err
				}
			}
			families, err := reg.Gather()
			if err != nil {
				return err
			}
			var series []string
			for _, family := range families {
				for _, one := range family.GetMetric() {
					for _, l := range one.GetLabel() {
						series = append(series, fmt.Sprintf("%s %s=%s %v", family.GetName(), l.GetName(), l.GetValue(), one.GetGauge().GetValue()))
					}
				}
			}
			seen <- series
			return nil
		}})
	})
	series := func(p pipeline.Plugin) []string {
		r := run(t.Context(), options(p, "do", "--profile", "local"))
		require.Zero(t, r.code, r.stderr)
		return await(t, seen)
	}
	plain := series(p)
	for _, want := range []string{
		"millrace_build_info version=v1.2.3 1", "millrace_build_info go=" + runtime.Version() + " 1", "millrace_build_info commit=unknown 1",
		"millrace_instance_info profile=local 1", "millrace_instance_info environment=external 1",
		"millrace_instance_info simulator=false 1",
	} {
		require.Contains(t, plain, want)
	}
	require.Contains(t, series(simulating{p}), "millrace_instance_info simulator=true 1")
}

type simulating struct{ *toy }

func (simulating) Simulates() bool { return true }
