//go:build unix

package simulator

import (
	"os"
	"syscall"
)

// lock keeps other processes from the file until unlock, or until this process is dead.
func lock(f *os.File) error {
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == syscall.EWOULDBLOCK {
		return ErrJournalInUse
	} else if err != nil {
		return err
	}
	return nil
}

// unlock ends lock. Closing the file is not enough: a process that is just being started from this
// one holds a copy of the file, and with it the lock, until its exec.
func unlock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
