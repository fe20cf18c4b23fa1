// Package streams owns elastic streams: one Redis stream an id, as many as there is work for, a million
// over time. It starts their readers, sizes them, adds entries, and deletes what has been drained
// for long enough; the next entry brings a deleted stream back. All streams of a Kind are one
// pipeline.Source, so they are one route.
//
// A Manager is the whole of it. Which streams should run is asked of Activations, which is durable
// and shared by all instances. Redis holds hints; what is lost there is lost visibly, by another
// incarnation of the stream.
//
// # Non-obvious
//
//   - An idle stop and a new entry race (fact 23). The order is: off the active set; delete if still
//     drained, in one script; if it was not drained, back on. The enqueue's order is: add; if the stream is
//     absent, activate, create, add, and activate again. Without the last step an idle stop of another
//     instance that comes between activate and create takes the id off, finds nothing to delete, and
//     nobody reads the entry. race_test.go runs every order.
//   - A stream that is read here but not on the active set for two rounds is put back. That heals an
//     instance that died between the steps, and one that created a stream on old news.
//   - Idle is not judged by a reader: the stream's meta remembers, by the server's clock, since when
//     nothing has been pending or unread in any group that counts. Every instance may see it first; what is in hand
//     in any of them is pending, so it is not drained.
//   - The own group and the required groups count always. A foreign group counts for at most its grace after it was
//     first seen to hold what the others have released, and then not until it has released that too. "Released" is judged
//     by ids, not by what exists: what was trimmed meanwhile was never read by it.
//   - Whether an enqueued hint may be lost (State.Drained) is the own group's affair alone.
//   - Drained is not "lag is 0" and not "last delivered is last generated": both can be wrong for ever.
//   - On a full server (OOM) a script's first write must be one that needs no memory; then all its writes pass. So
//     every visit trims before it writes anything.
//   - A full stream first loses what every group that counts has acknowledged, by id, never by length: MAXLEN removes
//     what nobody has read.
//   - A group that has to be created gets a new incarnation, whatever meta says: the stream under it may
//     be another one.
//   - Of many callers that enqueue to one stream, the first makes the call for all of them, then hands the
//     lead to the next: there is no goroutine to own, and a burst costs one command.
//   - A reader ends by itself when its stream is gone and not active. The keeper forgets it at its next round.
package streams
