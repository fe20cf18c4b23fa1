// Package web is the public HTTP server of a process. It is separate from the operations server of
// package telemetry.
package web
