// Package logs has what the log lines of all plugins share: the keys of their attributes, so that one
// search finds a route or an origin in all of them, and samplers, so that an outage is one line per
// minute and not one per message:
//
//	warnings := logs.NewThrottle(time.Minute)
//	warnings.Warn(log, "server unavailable, trying again", slog.String(logs.Stream, name), logs.Err(err))
package logs

import "log/slog"

// Attribute keys of log lines, the same in every plugin.
const (
	Error         = "error"
	Instance      = "instance"
	Plugin        = "plugin"
	Route         = "route"
	Origin        = "origin"
	Topic         = "topic"
	Group         = "group"
	Partition     = "partition"
	Offset        = "offset"
	Stream        = "stream"
	Domain        = "domain"
	Component     = "component"
	Stage         = "stage"
	StreamEntryID = "stream_entry_id"
	LastAt        = "last_at" // of a line that is written later than the event that it is about
)

// Err returns the attribute of an error.
func Err(err error) slog.Attr { return slog.Any(Error, err) }
