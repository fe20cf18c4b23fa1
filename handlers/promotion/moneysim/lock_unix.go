//go:build unix

package moneysim

import (
	"os"
	"syscall"
)

// lock keeps other processes from the file until it is closed or this process is dead.
func lock(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == syscall.EWOULDBLOCK {
		return ErrBookInUse
	} else if err != nil {
		return err
	}
	return nil
}
