// Package tag names the image of a binary, so that the chart asks for what `make image` has built.
package tag

import "strings"

// Of returns the tag of the image of a binary, by the version in its build information. It is also a version
// of a chart and a value of a label, so the + of a changed checkout, which a registry refuses, becomes a dash.
func Of(version string) string {
	if version == "(devel)" || version == "" {
		return "v0.0.0-devel" // built outside of a repository
	}
	return strings.ReplaceAll(version, "+", "-")
}
