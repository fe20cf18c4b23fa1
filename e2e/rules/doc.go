// Package rules tests the rules of the repository's own source: imports, the layout of plugin
// folders, the length of files, links, and words. Each rule has a case that must fail.
package rules
