//go:build unix

package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock makes dir and takes it for this process. The system gives it back when the process ends,
// however it ends.
func lock(dir string) (unlock func(), err error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) //nolint:gosec // a descriptor fits
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrDirInUse
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("data folder %s: %w", dir, err)
	}
	return func() { file.Close() }, nil
}
