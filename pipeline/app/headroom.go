package app

import "os"

// headroomBytes is how much more the heap may grow between two collections than twice what is alive. A pipeline
// keeps little and makes much garbage: with a live heap of some 15 MB the collector would run every 15 MB, and with
// this it runs every 80 MB. Measured on the promotion pipeline it is a quarter of all CPU.
const headroomBytes = 40 << 20

// keepHeadroom returns a block that the collector counts as alive and nobody ever touches, so that it costs address
// space and no memory. Unlike a memory limit it can't make a large heap collect without end. It is nil when the
// environment has GOGC or GOMEMLIMIT: then a person has decided.
func keepHeadroom() []byte {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	return make([]byte, headroomBytes)
}
