// Package operate has the types of what people ask of a pipeline and change in it, as data instead of
// text, so that a command, its --json and any other face show the same values:
//
//	plugin --Report: Read--------> Answer --> app: tables or --json, and an exit code
//	       --Action: Preview, Do-> Answer --> app: the same, with --dry-run for Preview
//
// An Answer has one value for programs, tables for people, and a Check for each thing that is not in order.
//
// A plugin has its reports and actions in a method (Operated) and does not offer them to the registry,
// because the names and flags of commands are needed before any settings are read, while offers are
// made in Register. What a report needs of other plugins is offered: see DeadLetters. So is what a plugin
// can examine (Examined): Diagnose reads it all at once, and the command doctor shows it. What a plugin knows without
// asking, such as that a far side does not answer, it offers as a Conditioned: the graph, the routes and readiness
// show it while it lasts.
package operate
