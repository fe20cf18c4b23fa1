// Package profiles holds the settings profiles of the binary millrace. A binary of your own brings
// its own files (app.Options.Profiles).
package profiles

import (
	"embed"
	"io/fs"
)

//go:embed *.yaml
var files embed.FS

// Files returns the profiles, NAME.yaml each.
func Files() fs.FS { return files }
