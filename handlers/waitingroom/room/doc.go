// Package room keeps waiting rooms in Redis: one room per event, with its queue, leases and limits.
//
// A user waits at an index. A tick promotes users in the order of their indexes and gives each a
// lease. The lease is a slot until it ends: sold, abandoned or expired. The number of free slots is
// computed from the leases, so no crash can lose a slot or free it twice.
//
// All state of an event has one hash slot. Each change is one script, which uses the time of the
// server. The time of a room stands still while there are no ticks, so an outage ends nothing.
package room
