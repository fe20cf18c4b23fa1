package operate

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// clockError is the state of adjtimex(2) of a clock that nothing synchronizes.
const clockError = 5

func clockSynchronized() (synchronized, known bool) {
	state, err := syscall.Adjtimex(&syscall.Timex{}) // without modes it only reads
	return state != clockError, err == nil
}

// cgroupMemory returns the least memory limit of the cgroups of the process, in bytes, of version 2 or
// 1. The files are below root. limited is false without a limit.
func cgroupMemory(root string) (limit int64, limited bool) {
	groups, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // number:controllers:path
		if len(parts) != 3 {
			continue
		}
		folder, file := filepath.Join(root, "sys/fs/cgroup"), "memory.max"
		switch {
		case parts[1] == "memory":
			folder, file = filepath.Join(folder, "memory"), "memory.limit_in_bytes"
		case parts[1] != "":
			continue
		}
		// The limit of a parent counts too. In a container the path may be that of the host, which
		// does not exist, and the container's limit is in the root.
		for path := filepath.Clean("/" + parts[2]); ; path = filepath.Dir(path) {
			text, err := os.ReadFile(filepath.Join(folder, path, file))
			n, wrong := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // "max" is no number
			if err == nil && wrong == nil && n < noLimit && (!limited || n < limit) {
				limit, limited = n, true
			}
			if path == "/" {
				break
			}
		}
	}
	return limit, limited
}

// noLimit is below the number with which version 1 says that there is no limit, and above the memory
// of any machine.
const noLimit = 1 << 60
