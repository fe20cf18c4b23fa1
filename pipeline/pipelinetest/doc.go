// Package pipelinetest tests plugins with the real chain. Conformance checks the rules for every
// plugin. Run sends messages through a plugin's routes. Feed and Recorder replace brokers.
package pipelinetest
