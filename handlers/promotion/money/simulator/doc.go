// Package simulator is a simulated Money API: it speaks the OpenAPI contract of package money,
// breaks in the ways that real APIs break (Faults), and keeps a book of every charge that it has
// executed. The book, not the caller's ledger, is what tests ask whether a target was paid, and
// whether it was paid twice.
//
// # Non-obvious
//
// Faults are a function of the seed, the key and the number of the attempt with that key, never of
// the order in which requests arrive, so a rerun with the same seed breaks the same calls. A
// rejection depends on the key alone, since it is final; everything else is drawn again at every
// attempt, so a retry succeeds in the end. Attempts are counted in memory and begin again with the
// process.
//
// A caller that hangs up does not stop a charge. While a request waits out its latency it is in
// flight, the same key answers 409, and then it is charged, whether anybody still listens or not.
//
// A charge is in the book before it is answered. With a JournalPath it was handed to the kernel
// (write) by then, so a killed process has lost nothing, and it is fsynced once a second and at
// Stop, so a power cut loses at most a second; Config.SyncAlways fsyncs before every answer.
// Concurrent charges share one write and one fsync. A last line that a crash has torn is cut off
// at the next start: its charge was never answered. Any other damage refuses to start.
//
// The simulator does not check that a key fits its body, so that a caller that mixes them up is
// found out: double charges are counted by (type, promotion, target) of the body.
package simulator
