// Package signin finds out who sends a request, for servers of this process: a trusted proxy names the user
// in a header, or the sign-in of the site has signed a token. plugins/web and plugins/console use it.
package signin
