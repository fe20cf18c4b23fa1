// Package eventrouter brings the progress of jobs to browsers. Workers add events to the shards of
// a domain. The router stores them in the log of each job, and gateways send them to those that
// watch the job.
//
// The packages: event (fields, limits, shard), joblog (what Redis keeps), router, gateway, producer
// (for workers), watch (a client), checker and demo.
package eventrouter
