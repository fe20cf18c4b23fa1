// Package e2e tests the built binary on embedded and on real servers: one file per promise, other
// scenarios, and the fault suite. README.md describes them.
package e2e
