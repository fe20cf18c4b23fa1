// Package telemetry has the operations server, with metrics, liveness, readiness and the handlers
// of other plugins. It also sends OpenTelemetry traces to a collector.
package telemetry
