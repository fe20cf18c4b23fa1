// Package cli has the commands of the promotion plugin: one file per command. They use the plugin
// only through Env.
//
// services.go decides which services each command starts. args.go reads ids and common flags,
// format.go writes times, names and tables, errors.go turns an error into an exit code.
package cli
