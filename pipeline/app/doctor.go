package app

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline/operate"
)

const doctorName = "doctor"

func (h *Host) doctorCommand() *cobra.Command {
	var strict bool
	cmd := h.JSONFlag(h.ServiceFlags(&cobra.Command{
		Use:   doctorName,
		Short: "Check servers and process for what loses data or stops work",
		Long: fmt.Sprintf(`Check the servers and this process for what loses data or stops work.

Each line is ok, warn or fail, with what to do. All checks run at once, and each has %s to answer. They only read, and need no running instance. The limits of the process are those of the shell or container in which the command runs.

The exit code is 0 when no check failed, 1 when one did, and 3 when a server is away. With --strict a warning makes it 1, too.`, operate.CheckLimit),
		Example: h.examples("doctor --config settings.yaml", "doctor --config settings.yaml --strict --json"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return h.Services(cmd.Context(), cmd, ServicesOptions{Routes: true, allSecrets: true}, func(ctx context.Context, running *Running) error {
				return h.doctor(ctx, cmd, running, strict)
			})
		},
	}))
	cmd.Flags().BoolVar(&strict, "strict", false, "end with 1 for warnings, too")
	return cmd
}

func (h *Host) doctor(ctx context.Context, cmd *cobra.Command, running *Running, strict bool) error {
	places := examined(running.Registry)
	var progress func(int)
	done := func() {}
	if h.IsTerminal(h.Err()) {
		bar := h.Progress(int64(len(places)), "examined")
		progress, done = func(n int) { bar.Set(int64(n)) }, bar.Done
	}
	d := operate.Diagnose(ctx, places, operate.CheckLimit, progress)
	done()
	if ctx.Err() != nil {
		return ctx.Err() // what was not read is no failure
	}
	if err := h.Show(cmd, d, func(out io.Writer) error { return writeDiagnosis(out, d) }); err != nil {
		return err
	}
	switch {
	case len(d.Away) > 0:
		return &ExitError{Code: ExitUnavailable}
	case d.Failures > 0, strict && d.Warnings > 0:
		return &ExitError{Code: ExitBad}
	}
	return nil
}

func writeDiagnosis(out io.Writer, d operate.Diagnosis) error {
	for _, c := range d.Checks {
		fmt.Fprintf(out, "%-4s  %s\n", c.Level, Printable(withoutRepeats(c.String())))
	}
	if _, err := fmt.Fprintf(out, "\n%s\n", d.Summary()); err != nil {
		return fmt.Errorf("write the checks: %w", err)
	}
	return nil
}
