// Package web is the public HTTP server of a process. It is separate from the operations server of package
// telemetry, so that a flood of public requests takes no probe away. A plugin adds a handler in Register, with
// options that say who may call it (Example is the complete program):
//
//	o.web.Handle("GET /orders/{id}", handler, web.Users(), web.AllowOrigins())
//
// A request that reaches a handler has passed the limits of connections, the time limit of its header and the
// check of its origin. Where the options say so, it has passed the sign-in and the limits of streams, too.
package web
