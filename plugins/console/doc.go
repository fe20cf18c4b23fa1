// Package console serves pages on which an operator sees what the pipeline does, and why something is not
// in order. It has a server of its own, apart from the public one and from the one of the metrics. Pages and
// forms need no scripts; with them, a page reads itself again while somebody looks at it.
//
// The pages come from the plugins (console.Contributor of package pipeline/console), so a plugin of another
// module has one, too: Example is the complete program. What a page shows is also JSON below /api/v1/.
package console
