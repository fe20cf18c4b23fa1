//go:build !linux

package operate

// cgroupMemory returns that there is no limit, because only Linux has cgroups.
func cgroupMemory(string) (limit int64, limited bool) { return 0, false }

func clockSynchronized() (synchronized, known bool) { return false, false }
