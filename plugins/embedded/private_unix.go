//go:build unix

package embedded

import "syscall"

// Private makes every file that this process makes from now on its owner's only: the Kafka inside
// chooses the rights of its files itself, and they hold what payouts hold. It is for a process that
// is a whole embedded environment.
func Private() { syscall.Umask(0o077) }
