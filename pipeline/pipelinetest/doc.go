// Package pipelinetest tests plugins with the real chain and runtime, and without a broker:
//
//	in, out := pipelinetest.NewFeed("words"), pipelinetest.NewRecorder("shouts")
//	pipelinetest.Start(t, shout{in, out}) // a plugin with one route from in to out
//	in.SendPayloads("hey")
//	msgs, err := out.Wait(t.Context(), 1) // "hey!"
//
// A Feed takes the place of a source and a Recorder that of a sink, so only the two ends of the route
// are replaced:
//
//	Feed --> chain --> Handle --> Recorder
//
// Conformance checks the rules for every plugin without a server, and Transport checks a plugin that
// moves messages, with its real server where there is one.
package pipelinetest
