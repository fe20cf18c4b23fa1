// Package producer adds the events of jobs to the shards of a domain, for workers in this and in
// other programs. It needs no plugin of Millrace besides the server that it is given.
package producer
