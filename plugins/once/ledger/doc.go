// Package ledger stores effects and decides, in transactions, who may call for one and what became
// of it, in PostgreSQL or in a SQLite file. [rules.Policy] has the decisions.
package ledger
