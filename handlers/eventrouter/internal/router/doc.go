// Package router moves the events of jobs from the shards of a domain into the logs of the jobs and
// the feeds of the shards.
package router
