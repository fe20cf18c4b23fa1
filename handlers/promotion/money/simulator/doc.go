// Package simulator is a simulated Money API. It implements the OpenAPI file of package money,
// fails like real APIs (Faults), and keeps a journal of its charges. Tests compare the journal, not
// the caller's ledger, with the targets that were paid.
//
// # Non-obvious
//
// Faults depend on the seed, the key and the number of the attempt with that key, never on the
// order of the requests. Therefore a run with the same seed fails the same calls. A rejection
// depends on the key alone, because it is final. Everything else is drawn again at every attempt,
// so a retry succeeds in the end. Attempts are counted in memory, from the start of the process.
//
// A caller that disconnects does not stop a charge. A request is in flight during its latency, the
// same key answers 409, and then it is charged.
//
// A charge is in the journal before it is answered. It was written to the file by then, so a killed
// process has lost no answered charge. The file is fsynced once per second and at Stop, so a power
// cut loses at most a second. Concurrent charges share one write and one fsync. A torn last line is
// cut off at the next start, because its charge was never answered. Any other damage refuses to
// start.
//
// The simulator does not check that a key fits its body. Double charges are counted by (type,
// promotion, target) of the body, and so show a caller that mixes them up.
package simulator
