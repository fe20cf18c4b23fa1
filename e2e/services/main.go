// Services starts and stops the real servers that tests and `demo --profile local` need: Apache
// Kafka, Redis, Valkey and PostgreSQL on loopback ports of their own. It installs Chromium for the
// tests of web pages. Run it from the repository's top folder:
//
//	go run ./e2e/services up               start what does not run yet
//	go run ./e2e/services status           which servers answer
//	go run ./e2e/services env              export lines with the addresses of those that answer
//	go run ./e2e/services env local        the same, and the settings of Millrace's profile local
//	go run ./e2e/services restart redis    stop in order and start again
//	go run ./e2e/services kill redis       kill -9; up starts it again
//	go run ./e2e/services down             stop what up has started; data stays
//	go run ./e2e/services wipe             down, and remove the data
//
// After eval "$(go run ./e2e/services env local)" the binary runs on the servers, whatever their ports are.
// Tests are given the lines without settings, because a binary that a test starts would follow them.
//
// Exit codes: 0 done, 2 usage, 3 a server can't be had.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace-io/millrace/e2e/services/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

const usage = `usage: go run ./e2e/services up|down|status|env|restart|kill|wipe [kafka|redis|valkey|postgres|chromium]...
   or: go run ./e2e/services env local [kafka|redis|valkey|postgres]...`

func run(ctx context.Context, args []string, getenv func(string) string, out, errOut io.Writer) int {
	fleet, err := fleetOf(getenv, errOut)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return 2
	}
	if len(args) == 0 {
		fmt.Fprintln(errOut, usage)
		return 2
	}
	command, names := args[0], args[1:]
	local := command == "env" && len(names) > 0 && names[0] == profileLocal
	if local {
		names = names[1:]
	}
	for _, name := range names {
		if servers.EnvVar(name) == "" {
			fmt.Fprintf(errOut, "unknown server %q\n%s\n", name, usage)
			return 2
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	switch command {
	case "up":
		if err := remember(getenv); err != nil {
			fmt.Fprintln(errOut, err)
			return 3
		}
		return report(out, fleet.Up(ctx, names...))
	case "down":
		return report(out, fleet.Down(ctx, names...))
	case "wipe":
		return report(out, fleet.Wipe(ctx, names...))
	case "status":
		return report(out, fleet.Status(ctx, names...))
	case "env":
		return printEnv(out, errOut, fleet.Status(ctx, names...), local)
	case "restart", "kill":
		if len(names) == 0 {
			fmt.Fprintf(errOut, "%s needs the name of a server\n%s\n", command, usage)
			return 2
		}
		if command == "kill" {
			return report(out, fleet.Kill(ctx, names...))
		}
		return report(out, fleet.Restart(ctx, names...))
	default:
		fmt.Fprintf(errOut, "unknown command %q\n%s\n", command, usage)
		return 2
	}
}

const (
	folder    = ".services"
	offsetVar = "MILLRACE_SERVICES_PORT_OFFSET"
)

// offsetFile has the offset of the last up, so that later commands find the servers of this checkout and not
// those of another one, whatever their shell has exported.
func offsetFile() string { return filepath.Join(folder, "port_offset") }

// remember writes the offset that is in effect to offsetFile.
func remember(getenv func(string) string) error {
	offset := getenv(offsetVar)
	if offset == "" {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("%s: %w", offsetVar, err)
	}
	if err := os.WriteFile(offsetFile(), []byte(offset+"\n"), 0o600); err != nil {
		return fmt.Errorf("%s: %w", offsetVar, err)
	}
	return nil
}

// offsetOf returns the offset of the variable, or else of the last up, and where it is from.
func offsetOf(getenv func(string) string) (offset, from string, err error) {
	if offset = getenv(offsetVar); offset != "" {
		return offset, offsetVar, nil
	}
	text, err := os.ReadFile(offsetFile())
	if errors.Is(err, fs.ErrNotExist) {
		return "0", "", nil
	}
	return strings.TrimSpace(string(text)), offsetFile(), err
}

// fleetOf returns the servers of ./.services. MILLRACE_SERVICES_PORT_OFFSET moves all ports, for a
// second checkout on the same machine, and up remembers it.
func fleetOf(getenv func(string) string, progress io.Writer) (*servers.Fleet, error) {
	opts := servers.Options{
		Dir: folder, Getenv: getenv, Progress: progress, ComposeFile: "e2e/services/compose.yaml",
	}
	text, from, err := offsetOf(getenv)
	if err != nil {
		return nil, err
	}
	offset, err := strconv.Atoi(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	opts.Ports = map[string]int{
		servers.Kafka: 19092 + offset, "controller": 19093 + offset,
		servers.Redis: 16379 + offset, servers.Valkey: 16380 + offset, servers.Postgres: 15432 + offset,
	}
	return servers.New(opts)
}

func report(out io.Writer, reports []servers.Report) int {
	code := 0
	for _, r := range reports {
		fmt.Fprintln(out, r)
		if r.Err != nil {
			code = 3
		}
	}
	return code
}

// profileLocal is the profile of Millrace for the servers of this program.
const profileLocal = "local"

// printEnv prints a line for each server that answers, and with local also the settings of Millrace.
func printEnv(out, errOut io.Writer, reports []servers.Report, local bool) int {
	code := 0
	set := func(variable, value string) { fmt.Fprintf(out, "export %s='%s'\n", variable, value) }
	if local {
		set("MILLRACE__PROFILE", profileLocal)
	}
	given := map[string]bool{} // by Redis, which Valkey would replace
	for _, r := range reports {
		if r.Err != nil {
			fmt.Fprintln(errOut, r)
			code = 3
			continue
		}
		set(servers.EnvVar(r.Name), r.Addr)
		if !local {
			continue
		}
		for _, variable := range servers.Settings(r.Name) {
			if !given[variable] {
				set(variable, r.Addr)
			}
			given[variable] = true
		}
	}
	return code
}
