// Package pipelinetest is the kit that proves a plugin right with the real chain: Conformance
// checks what every plugin must keep, Run drives messages through a plugin's routes, Feed and
// Recorder stand in for brokers.
package pipelinetest
