//go:build !unix

package embedded

// lock makes dir. There is no advisory lock to take on this system: one process a folder is up to
// the caller.
func lock(dir string) (unlock func(), err error) { return func() {}, makeDir(dir) }
