// Package payouts says what a payout is: its key, its record, its row, and its calls in the words of a
// promotion.
//
// The rules in plugins/once/ledger/rules know neither a payout nor a charge. They have one vocabulary for every side effect,
// while the tables, reports and logs of promotions keep their own, which operators know. [OutcomeOf] and
// [AttemptOf] are the only places that translate one into the other.
package payouts
