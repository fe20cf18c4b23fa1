package wire

import (
	"io/fs"

	"github.com/millrace-io/millrace/configs/profiles"
)

// Profiles are the settings profiles of the service.
func Profiles() fs.FS { return profiles.Files() }
