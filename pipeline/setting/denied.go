package setting

import (
	"errors"
	"io/fs"
	"syscall"
)

// Denied reports whether a file or folder can't be opened and never will be, because the process lacks
// the rights or the file system is read-only. A person must then name another one.
func Denied(err error) bool {
	file, ok := errors.AsType[*fs.PathError](err)
	return ok && (errors.Is(file, fs.ErrPermission) || errors.Is(file, syscall.EROFS))
}
