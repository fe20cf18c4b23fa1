package console

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/millrace-io/millrace/pipeline/console"
)

// tracePlace stands for the id of a trace in plugins.console.trace_url.
const tracePlace = "{trace}"

// traceID is the form that the W3C gives ids of traces. Anybody may have written something else.
var traceID = regexp.MustCompile(`^[0-9a-f]{32}$`)

// isTraceURL reports whether an address becomes one of a page in another program when an id is put into it.
func isTraceURL(address string) bool {
	before, behind, found := strings.Cut(address, tracePlace)
	u, err := url.Parse(before + strings.Repeat("0", 32) + behind)
	return found && !strings.ContainsAny(before+behind, "{}") && err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil
}

// traceLink returns the address of the trace of a cell, and "" if there is none.
func (c *Config) traceLink(cell console.Cell) string {
	if c.TraceURL == "" || cell.Link != "" || !traceID.MatchString(cell.Trace) {
		return ""
	}
	return strings.Replace(c.TraceURL, tracePlace, cell.Trace, 1)
}
