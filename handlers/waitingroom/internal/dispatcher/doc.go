// Package dispatcher promotes the waiting users of all events, and sends each promotion to the
// instance that has the connection of the user.
//
// # Non-obvious
//
//   - Each dispatcher runs the ticks of all events. The script does nothing when another dispatcher
//     was first.
//   - The stream ENTRY only shortens the wait of a user. A broker also finds promoted users by the
//     rank table, so a lost, repeated or late entry costs no turn.
package dispatcher
