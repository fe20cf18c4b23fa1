// Package pipelinetest tests plugins with the real chain. Conformance checks the rules for every
// plugin, and Transport those for a plugin that moves messages. Start runs the routes of a plugin. Feed
// and Recorder replace brokers.
package pipelinetest
