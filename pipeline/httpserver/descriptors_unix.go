//go:build unix

package httpserver

import (
	"math"
	"syscall"
)

// Descriptors returns how many file descriptors the process may have open (RLIMIT_NOFILE). Go raises
// the soft limit to the hard one at the start of a process. limited is false if there is no limit.
func Descriptors() (limit int, limited bool) {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil || uint64(l.Cur) > math.MaxInt32 { //nolint:unconvert // signed on some systems
		return 0, false
	}
	return int(l.Cur), true //nolint:gosec // it is small
}
