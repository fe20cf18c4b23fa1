// Package telemetry has the operations server of a process, with metrics, liveness, readiness and the handlers of
// other plugins, and sends OpenTelemetry traces to a collector. A plugin adds a check that shows its own progress,
// which fails when work that is due is not done (Example is the complete program):
//
//	r.Health("payouts", func(ctx context.Context) error {
//		telemetry.Detail(ctx, "oldest_unpaid_seconds", 12)
//		return nil
//	})
//
// Checks run in the background, so a request for /readyz or /metrics costs no server anything, and a check that
// hangs delays neither an answer nor another check.
package telemetry
