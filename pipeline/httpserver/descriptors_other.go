//go:build !unix

package httpserver

// Descriptors returns that the system limits no file descriptors.
func Descriptors() (limit int, limited bool) { return 0, false }
