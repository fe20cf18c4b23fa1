// Package pages has the web pages of the event router.
package pages

import (
	_ "embed" // the page
	"html/template"
)

//go:embed watch.html
var watchPage string

// Job is the data of the page Watch.
type Job struct{ Domain, JobID string }

// Watch returns the page that watches a job. It connects to the address "events" next to its own,
// with its own query.
func Watch() *template.Template { return template.Must(template.New("watch").Parse(watchPage)) }
