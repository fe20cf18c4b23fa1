// Package httpserver keeps the HTTP servers of a process within limits that no client can lift.
// Connections counts and limits connections, so that a flood leaves file descriptors for everything
// else. Requests ends a server in bounded time, even if clients send or read nothing.
package httpserver
