// Package token signs and verifies the tokens that browsers and shops present, which are JSON Web Tokens with EdDSA
// keys (Example is the complete program):
//
//	raw, err := tokens.Sign(token.Claims{Audience: "millrace-jobs", Job: []string{"scan/J1"}, Expires: end})
//	claims, err := tokens.Verify("millrace-jobs", raw)
//
// Other services verify them by the public keys, so no secret is shared. A valid token says what its signer allowed,
// while what it opens may have ended since.
package token
