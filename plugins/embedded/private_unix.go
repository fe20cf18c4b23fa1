//go:build unix

package embedded

import "syscall"

// Private makes every file that this process makes from now on its owner's only. The embedded Kafka
// chooses the rights of its files itself, and they contain payouts. It is for a process that is a
// complete embedded environment.
func Private() { syscall.Umask(0o077) }
