//go:build !unix

package embedded

// Private does nothing: this system has no rights that a process chooses for its files.
func Private() {}
