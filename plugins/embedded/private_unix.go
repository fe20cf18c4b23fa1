//go:build unix

package embedded

import "syscall"

// Private restricts all files that this process creates from now on to their owner. The files of
// the embedded Kafka contain payouts, and it has no setting for their rights. Private is for a
// process that is a complete embedded environment.
func Private() { syscall.Umask(0o077) }
