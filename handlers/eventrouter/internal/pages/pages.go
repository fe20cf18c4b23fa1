// Package pages has the web pages of the event router.
package pages

import (
	_ "embed" // the page
	"html/template"
	"time"

	"github.com/millrace-io/millrace/plugins/sse"
)

//go:embed watch.html
var watchPage string

// Job is the data of the page Watch.
type Job struct {
	Domain, JobID string
	// Silence is the time without an event after which the page takes its stream as lost.
	Silence time.Duration
}

// Watch returns the page that watches a job. It connects to the address "events" next to its own,
// with its own query.
func Watch() *template.Template {
	return template.Must(sse.AddModule(template.New("watch")).Parse(watchPage))
}
