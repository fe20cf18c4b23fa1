// Package ssetest has a client of Server-Sent Events for tests. It follows the algorithms of the
// HTML standard (section 9.2), and shares no code with package sse.
package ssetest
