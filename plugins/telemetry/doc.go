// Package telemetry shows a process from outside: an operations server with metrics, liveness, readiness
// and what other plugins add to it, and OpenTelemetry traces sent to a collector.
package telemetry
