//go:build noembedded

package wire

import "github.com/millrace-io/millrace/pipeline/app"

// Environments is empty in a build with the tag noembedded: such a binary starts no servers, and
// refuses the setting `environment: embedded`.
func Environments() map[string]app.Environment { return nil }
