// Package token signs and verifies the tokens that browsers and shops present: JSON Web Tokens with
// EdDSA keys.
package token
