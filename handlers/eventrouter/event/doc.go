// Package event has the events of jobs: their fields and limits, how a stream entry becomes an
// event, and the shard of a job.
package event
