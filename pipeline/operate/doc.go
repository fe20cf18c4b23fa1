// Package operate has the types of what people ask of a pipeline and change in it, as data instead of
// text: a Report answers a question, an Action changes something, and a Check says in one line
// whether something is in order. Package app makes commands of them, with --json, --dry-run and exit
// codes. Other faces read the same values.
//
// A plugin has its reports and actions in a method (Operated) and does not offer them to the registry,
// because the names and flags of commands are needed before any settings are read, while offers are
// made in Register. What a report needs of other plugins is offered: see DeadLetters. So is what a plugin
// can examine (Examined): Diagnose reads it all at once, and the command doctor shows it.
package operate
