// Package store is the table of dead letters, in PostgreSQL or SQLite, in which a person finds,
// groups, replays and discards them.
//
// A dead letter is open until a person replays or discards it. A replay has two steps. Begin leases
// the dead letter and makes it replaying. Finish makes it replayed, or gives it its former state
// when the replay was refused. The lease ends by the clock of the database. A dead letter whose
// replay did not finish is free when its lease ends, and the next replay resumes it.
//
// A dead letter that fails again after its replay is parked, in its next generation. A replay takes
// parked ones only on request. Every step is a row of dead_letter_actions.
//
// Put is idempotent by the id of the dead letter. It recognises one that failed again by its
// lineage: its subject (such as a payout), or the header millrace-replay of the replayed message.
package store
