// Package joblog keeps the events of jobs in Redis. Each job has a log and a state. Each shard has
// a feed with the newest events, for the gateways.
//
// The log is the truth. The first event with a number stays, and others with that number change
// nothing. The first terminal event that reaches the log ends the job. An event may be in the feed
// several times, always with the same content, and not in the order of its number.
package joblog
