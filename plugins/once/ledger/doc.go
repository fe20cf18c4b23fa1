// Package ledger stores effects and decides, in transactions, who may call for one and what became
// of it, in PostgreSQL or in a SQLite file. [rules.Policy] has the decisions.
//
// [Ledger.Accept] stores effects, [Ledger.Claim] takes leases of those that are due, and [Ledger.Settle]
// stores what became of the calls. [Ledger.Sweep] is called every few seconds by a loop of the user.
//
// # Non-obvious
//
//   - An effect that is not settled is in exactly one row of once_due, and a settled one is in none. Both
//     are written in one transaction, so no effect is ever without a time at which it is looked at. While
//     an effect is called that time is the end of its lease.
//   - In PostgreSQL effects of a group that are due together share a row, and each has its number. Calls
//     that were answered stay in the row of their claim until all of them are, and name it no more:
//     docs/decisions/0036-rows-of-due-effects.md. The views once_due_effects and once_effect_due are the
//     same in both databases.
//   - In PostgreSQL the first begin of effects is one statement, and so are first answers that say "done". The rules say what
//     it writes, and it leaves out what they would decide otherwise: docs/decisions/0037-fast-path.md.
//   - A claim that meets an effect of a paused group parks its row: the time becomes null, and the group
//     is marked. A paused group is therefore met once and costs nothing afterwards. Sweep unparks the
//     marked groups that are not paused, and only removes the mark when nothing is parked.
//   - A claim of a paused kind writes nothing, and its rows stay as they are. It costs nothing either, because
//     [Ledger.Due] says that there is no work. So a resume has nothing to undo, and groups that are paused stay so.
//   - A begin of a lease increments the epoch, and an answer with another epoch changes nothing:
//     docs/decisions/0011-fencing.md.
//   - Counts are inserted as deltas, and a sweep adds them to the totals, so that two transactions never
//     wait for a common row. A report reads both in one statement.
//   - The key of an effect contains the text of its group: docs/decisions/0033-groups-as-text.md.
//   - The limits of a kind are rows, too, with or without Redis: docs/decisions/0034-limits-in-the-ledger.md.
//     What an operator has set comes with the statement of [Ledger.Due], so no instance polls for it.
//
// # Locks
//
// Each transaction of PostgreSQL takes its locks in an order that has no cycle:
//
//   - A claim takes due rows that are free, with the locks of their groups and of the pause of their kind in
//     shared mode as far as these are free, then effects that are free, then rows of groups. It waits for no due row and no
//     pause, because whoever has it may stand still, and for no effect, except for one that was never begun and that an
//     operator's action locks while the first begin runs. Such an action is refused and writes nothing, and
//     pgLockTimeout bounds the wait.
//   - A settle, a cancellation and an operator's action wait for effects, in the order of their keys, and
//     write their due rows afterwards. A claim that holds such a due row does not wait for the effect,
//     and it writes only due rows that it has locked or made.
//     An operator's action takes the lock of the group after the effect, as a claim does.
//   - What takes results for publishing takes rows that are free, and what has published them waits for no one else's,
//     since transactions that settle only insert rows there.
//   - A pause, a resume and the first part of a cancellation take the lock of one group exclusively and
//     write its row, and nothing else. Those of a kind do so with the lock of its pause.
//   - An [Ledger.Expect] writes the row of one group, and waits for it while it holds nothing else.
//   - A sweep that unparks takes the lock of one group in shared mode and due rows that are free. One that
//     adds counts takes rows of groups and totals, in the order of their keys.
//   - A [Ledger.Permit] and a change of limits take the lock of the limits of one kind exclusively, and then
//     write rows that nobody else writes.
//   - An accept waits for keys, in their order. A caller of AcceptTx may hold keys for longer, so an accept
//     that waits longer than half a second gives up for that key alone.
package ledger
