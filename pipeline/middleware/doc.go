// Package middleware holds the chain every message passes, one file a middleware, and the one place
// where their order is decided: Chain.Wrap.
package middleware
