package promotion

import (
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// errorClasses returns the classes of this plugin's dead letters. A payout that used up its
// attempts has the class of its last result.
func errorClasses() []pipeline.ErrorClass {
	const usedUp = "not charged, all attempts used up: "
	return []pipeline.ErrorClass{
		{Name: money.Rejected.String(), Cause: "the Money API refused the payout; not charged", Action: "report the error to the operators of the Money API; replay after their fix"},
		{Name: rules.ClassFailed, Cause: "not charged, and all attempts are used up", Action: "fix the cause, then replay"},
		{Name: money.NotSent.String(), Cause: usedUp + "no request reached the Money API", Action: "fix the network or the Money API, then replay"},
		{Name: money.Throttled.String(), Cause: usedUp + "the Money API limits the rate", Action: "replay at a lower rate (`--rate`)"},
		{Name: money.Retry.String(), Cause: usedUp + "the Money API requested a later attempt", Action: "replay when the Money API works"},
		{Name: money.Misconfigured.String(), Cause: usedUp + "the Money API refuses this service's credentials or requests", Action: "fix the settings of the Money API, then replay"},
		{Name: money.NoCharge.String(), Cause: usedUp + "the Money API has no charge", Action: "replay"},
		{Name: rules.ClassUnknown, Cause: "perhaps charged, and all attempts are used up", Action: "resolve each payout first (alert `MillraceUnknownPayouts`); that discards the dead letter of a paid one"},
		{Name: rules.ClassLeaseExpired, Cause: "no result of the last attempt was stored before its lease ended; perhaps charged", Action: "as for `unknown`"},
		{Name: rules.ClassResolved, Cause: "an operator resolved the payout as not charged", Action: "replay to pay it after all; otherwise discard"},
		{Name: rules.ClassUnannounced, Cause: "an entry or retry record of a payout without a ledger row; nothing was paid", Action: "see the alert `MillraceUnannounced`; a replay announces the payout, and it is then paid"},
		{Name: rules.ClassConflict, Cause: "a second record has a different request; the first one stands", Action: "clarify with its publisher, then discard; pay a difference by another promotion"},
		{Name: payout.ClassWrongStream, Cause: "the payload of an entry names another promotion than its stream", Action: "another program wrote it: find and fix that program; then discard"},
		{Name: promotiontype.ClassUnknownType, Cause: "the record has a promotion type that this version does not have", Action: "the publisher corrects it: discard; or run a version that has the type: replay"},
	}
}
