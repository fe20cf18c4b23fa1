// Package simulator is a simulated far side of effects: an API that executes what it is asked for,
// fails like real APIs (Faults), and keeps a journal of what it has executed. Tests compare the
// journal, and not the caller's ledger, with what was to be done. API says how a far side names
// things; OnceCommand is one that flags describe.
//
// # Non-obvious
//
// Faults depend on the seed, the key and the number of the attempt with that key, never on the
// order of the requests. Therefore a run with the same seed fails the same calls. A rejection
// depends on the key alone, because it is final. Everything else is drawn again at every attempt,
// so a retry succeeds in the end. Attempts are counted in memory, from the start of the process.
//
// A caller that disconnects does not stop an execution. A request is in flight during its latency,
// the same key answers 409, and then it is executed.
//
// An execution is a row of the journal's one table before it is answered, so a killed process has
// lost no answered execution. The WAL of the file is fsynced once per second and at Stop, so a power
// cut loses at most a second. Executions that come together share a transaction. Everything is in
// memory, too, so no request reads the table, which is read at Start only.
//
// The simulator does not check that a key fits its body. Subjects that were executed twice are
// counted with any keys, and so show a caller that mixes them up.
package simulator
