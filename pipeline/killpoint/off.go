//go:build !faults

package killpoint

// Armed says whether this binary can be told to fail.
const Armed = false

// Reach does nothing.
func Reach(Point) {}
