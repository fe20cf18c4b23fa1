package payouts

import "github.com/millrace-io/millrace/plugins/once/ledger/rules"

// Row is a payout: which one it is, and the part of it that changes.
type Row struct {
	ID int64 // surrogate key, used by updates
	Key
	SummaryID int64
	rules.Row
}

// Apply is rules.Policy.Apply on the part of the payout that changes.
func (r Row) Apply(p rules.Policy, ev rules.Event) (Row, rules.Writes, rules.Decision) {
	next, writes, d := p.Apply(r.Row, ev)
	r.Row = next
	return r, writes, d
}
