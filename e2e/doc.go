// Package e2e is the proof: scenarios named after the promises, run with the built binary on the embedded
// and on the real home, and checked by reading the far side's own books.
package e2e
