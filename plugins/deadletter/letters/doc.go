// Package letters is the working copy of dead letters: an SQL table, in PostgreSQL or SQLite, in which a
// person finds, groups, replays and discards them. The topics they also go to are transport.
//
// A letter is open until somebody replays or discards it. A replay has two steps, so that one that dies
// half-way is finished by the next: Begin makes the letter replaying, Finish makes it replayed (or gives it
// back, refused). A letter that comes back after its replay is parked, in its next generation: only who asks
// for parked letters replays it again. Every step is a row of dead_letter_actions.
//
// Storing is idempotent by the letter's id, and a letter that comes back is recognised by its lineage: what
// it is about (a payout), or the header millrace-replay that its replay carried.
package letters
