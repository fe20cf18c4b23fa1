package campaign

import (
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline/app"
)

// ids splits arguments in the form in which commands print them: POINT:12345:777 is POINT 12345
// 777, also in one argument.
func ids(args []string) []string {
	if len(args) == 0 {
		return nil
	}
	return strings.FieldsFunc(strings.Join(args, ":"), func(c rune) bool { return c == ':' || c == ' ' })
}

// CheckPromotion reports arguments that are not those of a promotion.
func CheckPromotion(args []string) error {
	return requireIDs(2, args, "TYPE PROMOTION", "POINT 12345")
}

// CheckPayout reports arguments that are not those of a payout.
func CheckPayout(args []string) error {
	return requireIDs(3, args, "TYPE PROMOTION TARGET", "POINT 12345 777")
}

func requireIDs(n int, args []string, names, example string) error {
	if got := len(ids(args)); got != n {
		return app.Usage("requires %s, as in %s or %s; got %s", names, example, strings.ReplaceAll(example, " ", ":"), app.Plural(int64(got), "argument"))
	}
	return nil
}

// PromotionOf returns the promotion of arguments, such as POINT 12345 or POINT:12345.
func PromotionOf(args []string) (payouts.Promotion, error) {
	if err := CheckPromotion(args); err != nil {
		return payouts.Promotion{}, err
	}
	return promotionOf(args)
}

func promotionOf(args []string) (payouts.Promotion, error) {
	args = ids(args)
	t, err := TypeNamed("TYPE", args[0])
	if err != nil {
		return payouts.Promotion{}, err
	}
	id, err := number("PROMOTION", args[1])
	return payouts.Promotion{Type: payouts.Type(t.Name), ID: id}, err
}

// PayoutOf returns the key of a payout of arguments, such as POINT 12345 777 or POINT:12345:777.
func PayoutOf(args []string) (payouts.Key, error) {
	if err := CheckPayout(args); err != nil {
		return payouts.Key{}, err
	}
	p, err := promotionOf(args)
	if err != nil {
		return payouts.Key{}, err
	}
	target, err := number("TARGET", ids(args)[2])
	return payouts.Key{Type: p.Type, Promotion: p.ID, Target: target}, err
}

// TypeNamed returns the promotion type of an argument or flag, whose name is what.
func TypeNamed(what, name string) (promotiontype.Type, error) {
	t, known := promotiontype.ByName(strings.ToUpper(name))
	if !known {
		return t, app.Usage("%s must be one of %s, got %q", what, strings.Join(promotiontype.Names(), ", "), name)
	}
	return t, nil
}

// TypeFilter returns the type of a flag --type; empty: all types.
func TypeFilter(name string) (payouts.Type, error) {
	if name == "" {
		return "", nil
	}
	t, err := TypeNamed("--type", name)
	return payouts.Type(t.Name), err
}

func number(what, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, app.Usage("%s must be a whole number > 0, got %q", what, text)
	}
	return n, nil
}
