// Package streams owns elastic streams: one Redis stream per id, a million over time. It starts
// their readers, sets their concurrency, adds entries, and deletes streams that have been drained
// for long enough. The next entry creates a deleted stream again. All streams of a Kind are one
// pipeline.Source, so they are one route.
//
// A Manager does all of it. Activations says which streams should run; it is durable and shared by
// all instances. Redis has copies only. A loss there shows as another incarnation of the stream.
//
// # Non-obvious
//
//   - An idle stop and a new entry race. The stop removes the id from the active set. One script
//     then deletes the stream if it is still drained; otherwise the stream is reactivated. The
//     enqueue adds. If the stream is absent, it activates, creates, adds, and activates again.
//     Without the last step an entry can be stranded: another instance's idle stop between activate
//     and create removes the id and finds nothing to delete. race_test.go runs every order.
//   - A stream that is read here but not in the active set for two rounds is reactivated. That
//     repairs an instance that was killed between the steps, and one that created a stream on old
//     information.
//   - No reader decides that a stream is idle. The stream's meta stores, by the server's clock,
//     since when nothing has been pending or unread in any group that counts. Any instance may see
//     it first. Entries in flight in another instance are pending, so the stream is not drained.
//   - The own group and the required groups count always. A foreign group counts for at most its
//     grace after it was first seen to hold entries that the others have released. Then it does not
//     count until it has released them too. Ids decide what is released: the group never read an
//     entry that was trimmed meanwhile.
//   - The control loop visits a stream when this instance has changed something in it, or when its
//     idle timeout may have passed. Another instance visits what it has changed itself.
//   - A wake-up may be lost, trimmed or duplicated. The poll interval finds the entry then.
//   - Only the own group decides whether an entry may still be lost (State.Drained).
//   - Drained is not "lag is 0" and not "last delivered is last generated": both can be wrong
//     forever.
//   - On a full server (OOM) a script's first write must need no memory; then all its writes pass.
//     So every visit trims before it writes anything.
//   - A full stream first loses what every group that counts has acknowledged, by id. It is never
//     trimmed by length: MAXLEN removes unread entries.
//   - A group that has to be created gets a new incarnation, whatever meta contains: the stream
//     under it may be another one.
//   - Concurrent callers that enqueue to one stream share calls. The first makes the call for all,
//     then the next one leads. No goroutine is needed, and a burst costs one command.
//   - A reader ends by itself when its stream is gone and not active. The next round removes it.
package streams
