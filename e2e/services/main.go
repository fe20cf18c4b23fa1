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
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
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

// fleetOf returns the servers of ./.services. MILLRACE_SERVICES_PORT_OFFSET moves all ports, for a
// second checkout on the same machine.
func fleetOf(getenv func(string) string, progress io.Writer) (*servers.Fleet, error) {
	opts := servers.Options{
		Dir: ".services", Getenv: getenv, Progress: progress, ComposeFile: "e2e/services/compose.yaml",
	}
	if v := getenv("MILLRACE_SERVICES_PORT_OFFSET"); v != "" {
		offset, err := strconv.Atoi(v)
		if err != nil {
			return nil, fmt.Errorf("MILLRACE_SERVICES_PORT_OFFSET: %w", err)
		}
		opts.Ports = map[string]int{
			servers.Kafka: 19092 + offset, "controller": 19093 + offset,
			servers.Redis: 16379 + offset, servers.Valkey: 16380 + offset, servers.Postgres: 15432 + offset,
		}
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
