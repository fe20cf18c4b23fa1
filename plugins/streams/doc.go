// Package streams owns elastic streams: one Redis stream per id, a million over time. A Manager starts
// their readers, sets their concurrency, adds entries, and deletes streams that have been drained for long
// enough. The next entry creates a deleted stream again:
//
//	manager := streams.NewManager(streams.Options{Kind: kind, Config: config, Client: client, Activations: active})
//	added, outcome, err := manager.EnqueueBatch(ctx, 12345, entries)
//
//	absent --- enqueue: into the active set, created ---> read
//	read ----- drained for idle_timeout: off the set ---> stopped
//	stopped -- still drained, in one script ------------> deleted (absent)
//	stopped -- no longer drained -----------------------> into the active set, read
//
// All streams of a Kind are one pipeline.Source, so they are one route. Activations says which streams
// should run; it is durable and shared by all instances, while Redis has copies only, and a loss there
// shows as another incarnation of the stream.
//
// # Non-obvious
//
//   - An idle stop and a new entry race. The stop removes the id from the active set, and one script then
//     deletes the stream if it is still drained; otherwise the stream is reactivated. The enqueue adds,
//     and if the stream is absent, it activates, creates, adds, and activates again. Without the last step
//     an entry can be stranded, because another instance's idle stop between activate and create removes
//     the id and finds nothing to delete. race_test.go runs every order.
//   - A stream that is read here but not in the active set for two rounds is reactivated. That repairs an
//     instance that was killed between the steps, and one that created a stream on old information.
//   - No reader decides that a stream is idle. The stream's meta stores, by the server's clock, since when
//     nothing has been pending or unread in any group that counts, and any instance may see it first.
//     Entries in flight in another instance are pending, so the stream is not drained.
//   - The own group and the required groups count always. A foreign group counts for at most its grace
//     after it was first seen to hold entries that the others have released, and then not until it has
//     released them too. Ids decide what is released, because an entry that was trimmed meanwhile was
//     never read by the group.
//   - The control loop visits a stream when this instance has changed something in it, or when its idle
//     timeout may have passed. Another instance visits what it has changed itself.
//   - A wake-up may be lost, trimmed or duplicated, because the poll interval finds the entry then.
//   - Only the own group decides whether an entry may still be lost (State.Drained).
//   - Drained is neither "lag is 0" nor "last delivered is last generated", because both can be wrong
//     forever.
//   - On a full server (OOM) all writes of a script pass if its first one needs no memory, so every visit
//     trims before it writes anything.
//   - A full stream first loses what every group that counts has acknowledged, by id. It is never trimmed
//     by length, because MAXLEN removes unread entries.
//   - A group that has to be created gets a new incarnation, whatever meta contains, because the stream
//     under it may be another one.
//   - Concurrent callers that enqueue to one stream share calls: the first makes the call for all, and then
//     the next one leads. No goroutine is needed, and a burst costs one command.
//   - A reader ends by itself when its stream is gone and not active, and the next round removes it.
package streams
