//go:build !unix

package simulator

import "os"

// lock does nothing where there is no flock: the file's owner must see to it that nobody else has it open.
func lock(*os.File) error { return nil }

func unlock(*os.File) error { return nil }
