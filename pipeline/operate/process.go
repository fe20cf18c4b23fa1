package operate

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/millrace-io/millrace/pipeline/httpserver"
)

// Process examines the process that calls it: its limits and its clock. A command has those of the
// shell, unit or container that it was started in.
func Process() Examination {
	one := func(what string, check func() Check) Examine {
		return Examine{what, func(context.Context) ([]Check, error) { return []Check{check()}, nil }}
	}
	return Examination{Place: "process", Open: func(context.Context) ([]Examine, func(), error) {
		return []Examine{
			one("descriptors", func() Check { return descriptors(httpserver.Descriptors()) }),
			one("memory", func() Check {
				limit, limited := cgroupMemory("/")
				return memory(limit, limited, debug.SetMemoryLimit(-1))
			}),
			one("clock", func() Check { return clock(clockSynchronized()) }),
			one("toolchain", func() Check {
				info, _ := debug.ReadBuildInfo()
				return toolchain(runtime.Version(), info)
			}),
		}, nil, nil
	}}
}

// fewDescriptors is what the connections to servers and the files of a process need in any case
// (see httpserver.Public), and as many for the clients.
const fewDescriptors = 1024

func descriptors(limit int, limited bool) Check {
	switch {
	case !limited:
		return Check{Level: OK, Text: "the number of open files is not limited"}
	case limit < fewDescriptors:
		return Check{
			Level: Warn, Text: fmt.Sprintf("at most %d files and connections may be open", limit),
			Remedy: fmt.Sprintf("raise the limit to %d or more (ulimit -n, LimitNOFILE of systemd)", fewDescriptors),
		}
	}
	return Check{Level: OK, Text: fmt.Sprintf("at most %d files and connections may be open", limit)}
}

// memory compares the memory limit of Go with that of the process's cgroup, both in bytes.
func memory(limit int64, limited bool, goLimit int64) Check {
	const remedy = "set GOMEMLIMIT to nine tenths of the limit, so that the collector works harder before the kernel ends the process"
	most := limit / 10 * 9
	switch {
	case !limited && goLimit == math.MaxInt64:
		return Check{Level: OK, Text: "the cgroup has no memory limit"}
	case !limited:
		return Check{Level: OK, Text: fmt.Sprintf("the cgroup has no memory limit, and GOMEMLIMIT is %s", mebibytes(goLimit))}
	case goLimit == math.MaxInt64:
		return Check{Level: Warn, Text: fmt.Sprintf("the cgroup has %s, and GOMEMLIMIT is not set", mebibytes(limit)), Remedy: remedy}
	case goLimit > limit:
		return Check{Level: Fail, Text: fmt.Sprintf("GOMEMLIMIT is %s, and the cgroup has only %s", mebibytes(goLimit), mebibytes(limit)), Remedy: remedy}
	case goLimit > most:
		return Check{Level: Warn, Text: fmt.Sprintf("GOMEMLIMIT is %s of the %s of the cgroup, which leaves little for all else", mebibytes(goLimit), mebibytes(limit)), Remedy: remedy}
	}
	return Check{Level: OK, Text: fmt.Sprintf("GOMEMLIMIT is %s of the %s of the cgroup", mebibytes(goLimit), mebibytes(limit))}
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }

func clock(synchronized, known bool) Check {
	switch {
	case !known:
		return Check{Level: OK, Text: "the system does not tell whether the clock is synchronized"}
	case !synchronized:
		return Check{
			Level: Warn, Text: "the kernel does not know the clock as synchronized",
			Remedy: "run an NTP client such as chrony on this machine, because leases and due times compare the clocks of machines",
		}
	}
	return Check{Level: OK, Text: "synchronized"}
}

// toolchain says what the binary was built with and from. info may be nil.
func toolchain(version string, info *debug.BuildInfo) Check {
	text := fmt.Sprintf("built with %s for %s/%s", version, runtime.GOOS, runtime.GOARCH)
	modified := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	if info != nil && slices.Contains(info.Settings, modified) {
		return Check{Level: Warn, Text: text + ", from a working tree with changes", Remedy: "build the binary from a commit, so that others can build the same one"}
	}
	return Check{Level: OK, Text: text}
}
