//go:build !faults

package failpoint

// Armed says whether this binary can be told to fail.
const Armed = false

// Hit does nothing.
func Hit(Point) {}
