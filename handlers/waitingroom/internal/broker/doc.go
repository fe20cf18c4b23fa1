// Package broker has the connections of the users. It queues users, sends their positions, and
// claims the leases of users that were promoted.
//
// # Non-obvious
//
//   - The rank table of an event has the index up to which users were promoted. A broker claims the
//     leases of all its users up to that index. So an entry of DISPATCH only shortens the wait.
//   - An answer about a place counts only while the user is at the index of the request. An answer
//     to an earlier request than the last one does not count.
//   - A claim that finds no place does not end a stream: a failover may have lost the place. The
//     next sign of life restores it, or returns why it ended.
//   - After an outage all signs of life are due at once. Signs of a user without an answer for a
//     long time have no index: the server may no longer remember that the user has left.
//   - The id of the event connected is a signed index with an end. A client that reconnects with an
//     older id is attached to its place, but a lost place is not restored.
package broker
