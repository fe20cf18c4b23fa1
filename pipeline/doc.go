// Package pipeline is the contract of Millrace: what a plugin is, how a flow is declared, run and
// stopped. It knows no broker and no business.
package pipeline
