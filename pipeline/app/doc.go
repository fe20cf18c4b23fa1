// Package app is the life and command line of a binary. A binary of your own needs only app.Main
// with its list of plugins:
//
//	func main() {
//		os.Exit(app.Main(context.Background(), app.Options{Name: "mine", Plugins: plugins}))
//	}
//
// A module with such a binary needs no more than `require github.com/millrace-io/millrace` in its
// go.mod. The binary has its own help text, settings profiles (Options.Profiles) and environment
// variables (MINE__LOG__LEVEL, MINE_CONFIG).
//
// # The life of `run`
//
//  1. Settings are read; every mistake in them is reported at once (exit code 2).
//  2. The environment of Options.Environments that the settings name is started. Its addresses
//     replace those of the settings.
//  3. Plugins register offline, in the order of the list.
//  4. Services start downstream first and wait for their servers, together up to start_timeout
//     (exit code 3). A service that opens a store brings its tables up to date, or refuses old ones
//     when the setting migrate is false (exit code 2).
//  5. Routes open; messages flow until a signal comes or a part fails.
//  6. All routes drain at once, then services stop upstream first; stop_timeout bounds both
//     together. Then the environment is stopped.
//
// A service manager that speaks the protocol of sd_notify, such as systemd with Type=notify, is told
// when the start is over (READY=1), when the drain begins (STOPPING=1), and in between that the process
// lives (WATCHDOG=1). It is asked to wait for as long as start_timeout and stop_timeout say.
//
// SIGTERM drains and exits with 0, Ctrl-C drains and exits with 130, a second Ctrl-C ends at once.
//
// # Commands
//
// A report or an action of a plugin (operate.Operated) becomes a command with a flag per field, --json,
// and --dry-run for an action. Host.Services starts what it needs, waits at most command_wait for
// absent servers, and names them. A command that streams is a function of its own (Commander).
//
// # Exit codes
//
// 0 done; 1 it ran and the answer is bad, such as a check that failed; 2 usage or configuration, also a
// file or folder that it may not open; 3 a server it needs could not be had, and what the others know is
// shown; 130 interrupted.
package app
