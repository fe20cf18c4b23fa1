// Package cli has the commands on dead letters: list, show, replay, discard and prune.
package cli
