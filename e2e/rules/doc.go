// Package rules tests what the project says about its own source: which folder may import which, how plugin
// folders are laid out, how long a file may be. Every rule has a case here that must fail it.
package rules
