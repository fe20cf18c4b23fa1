package payouts

import (
	"cmp"
	"strconv"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Type is the type of a promotion, such as POINT: an upper-case word. Any such word is accepted.
type Type string

// Promotion identifies a campaign.
type Promotion struct {
	Type Type
	ID   int64
}

// String returns TYPE:promotion.
func (p Promotion) String() string { return string(p.Type) + ":" + strconv.FormatInt(p.ID, 10) }

// StreamID returns the id of the promotion's stream.
func (p Promotion) StreamID() string { return strconv.FormatInt(p.ID, 10) }

// PromotionOfStream returns the promotion of a stream by its StreamID. Any other text, such as 007, is an
// error that wraps rules.ErrInvalid.
func PromotionOfStream(t Type, id string) (Promotion, error) {
	n, err := strconv.ParseInt(id, 10, 64)
	p := Promotion{Type: t, ID: n}
	if err != nil || n <= 0 || p.StreamID() != id {
		return Promotion{}, rules.Invalid("stream %q of type %s: want a positive number, as the promotion has it", id, t)
	}
	return p, nil
}

// Validate returns an error that wraps rules.ErrInvalid for a wrong type or id.
func (p Promotion) Validate() error {
	if len(p.Type) == 0 || len(p.Type) > 32 || p.ID <= 0 {
		return rules.Invalid("promotion %q: want an upper-case type and a positive id", p.String())
	}
	for i, c := range []byte(p.Type) {
		if (c < 'A' || c > 'Z') && (i == 0 || c != '_' && (c < '0' || c > '9')) {
			return rules.Invalid("promotion %q: type must be an upper-case word", p.String())
		}
	}
	return nil
}

// Key identifies a payout: one target of one promotion.
type Key struct {
	Type      Type
	Promotion int64
	Target    int64
}

// String returns TYPE:promotion:target, which is also the payout's idempotency key.
func (k Key) String() string {
	return string(k.Type) + ":" + strconv.FormatInt(k.Promotion, 10) + ":" + strconv.FormatInt(k.Target, 10)
}

// OfPromotion returns the promotion of the payout.
func (k Key) OfPromotion() Promotion { return Promotion{k.Type, k.Promotion} }

// Validate returns an error that wraps rules.ErrInvalid for a wrong promotion or target.
func (k Key) Validate() error {
	if k.Target <= 0 {
		return rules.Invalid("payout %s: target must be positive", k)
	}
	return k.OfPromotion().Validate()
}

// ComparePromotions orders promotions by type and id.
func ComparePromotions(a, b Promotion) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID))
}

// CompareKeys is the order in which every transaction locks rows, so that batches can't deadlock.
func CompareKeys(a, b Key) int {
	return cmp.Or(ComparePromotions(a.OfPromotion(), b.OfPromotion()), cmp.Compare(a.Target, b.Target))
}
