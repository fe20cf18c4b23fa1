//go:build !faults

package failpoint

// Armed says whether this binary has failpoints.
const Armed = false

// Hit does nothing.
func Hit(Point) {}
