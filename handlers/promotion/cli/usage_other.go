//go:build !unix

package cli

import (
	"runtime"
	"time"
)

func cpuTime() time.Duration { return 0 }

// peakMemory returns what the Go runtime has taken from the system, which is near to the peak.
func peakMemory() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys)
}
