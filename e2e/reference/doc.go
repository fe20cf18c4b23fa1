// Package reference tests docs/settings.md and docs/metrics.md against the code, and writes them:
// `make reference`. It also compares the defaults in the READMEs with those of the code.
package reference
