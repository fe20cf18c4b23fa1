// Package cli has the commands of the promotion plugin: one file per command. They use the plugin
// only through Env.
//
// env.go starts the services of each command. args.go reads ids and common flags,
// format.go writes times, names and tables, errors.go turns an error into an exit code.
package cli
