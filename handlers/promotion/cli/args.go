package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline/app"
)

// ids splits arguments in the form in which commands print them: POINT:12345:777 is POINT 12345
// 777.
func ids(args []string) []string {
	if len(args) == 0 {
		return nil
	}
	return strings.Split(strings.Join(args, ":"), ":")
}

func promotionArgs(_ *cobra.Command, args []string) error {
	return requireIDs(2, args, "TYPE PROMOTION", "POINT 12345")
}

func payoutArgs(_ *cobra.Command, args []string) error {
	return requireIDs(3, args, "TYPE PROMOTION TARGET", "POINT 12345 777")
}

func requireIDs(n int, args []string, names, example string) error {
	if got := len(ids(args)); got != n {
		return fmt.Errorf("requires %s, as in %s or %s; got %s", names, example, strings.ReplaceAll(example, " ", ":"), app.Plural(int64(got), "argument"))
	}
	return nil
}

func promotionID(args []string) (payouts.Promotion, error) {
	args = ids(args)
	t, err := typeNamed("TYPE", args[0])
	if err != nil {
		return payouts.Promotion{}, err
	}
	id, err := number("PROMOTION", args[1])
	return payouts.Promotion{Type: payouts.Type(t.Name), ID: id}, err
}

func payoutKey(args []string) (payouts.Key, error) {
	p, err := promotionID(args)
	if err != nil {
		return payouts.Key{}, err
	}
	target, err := number("TARGET", ids(args)[2])
	return payouts.Key{Type: p.Type, Promotion: p.ID, Target: target}, err
}

// typeNamed returns the promotion type of an argument or flag, whose name is what.
func typeNamed(what, name string) (promotiontype.Type, error) {
	t, known := promotiontype.ByName(strings.ToUpper(name))
	if !known {
		return t, app.Usage("%s must be one of %s, got %q", what, strings.Join(promotiontype.Names(), ", "), name)
	}
	return t, nil
}

// typeFilter returns the type of a flag --type; empty: all types.
func typeFilter(name string) (payouts.Type, error) {
	if name == "" {
		return "", nil
	}
	t, err := typeNamed("--type", name)
	return payouts.Type(t.Name), err
}

func number(what, text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, app.Usage("%s must be a whole number > 0, got %q", what, text)
	}
	return n, nil
}
