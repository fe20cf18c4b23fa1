package money

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"

	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

const (
	lookupPath = "/v1/charges/{key}"
	maxKeyLen  = 128 // of an idempotency key and of a transaction key
	// codeNotFound is the API's code for "no charge with this key". A 404 without it comes from another
	// server, such as a gateway.
	codeNotFound = "charge_not_found"
)

// ownCode is the form of the API's own codes in openapi.yaml.
var ownCode = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// errKey is the reason for a call that was not made.
var errKey = errors.New("the idempotency key can't be sent: it must be 1 to 128 printable ASCII characters without a slash")

// payoutCodes returns x-payout-codes of openapi.yaml: the codes of a 403 or 404 that concern only
// the payout of the request. Any other code concerns the client.
func payoutCodes() map[int][]string {
	return map[int][]string{
		http.StatusForbidden: {"member_blocked"},
		http.StatusNotFound:  {"member_not_found", "voucher_not_found"},
	}
}

// mapping says what the answers of the Money API mean.
func mapping() oncehttp.Mapping {
	return oncehttp.Mapping{
		Name:       "money",
		MaxKey:     maxKeyLen,
		Receipt:    []string{"transactionKey"},
		MaxReceipt: maxKeyLen,
		Key:        []string{"idempotencyKey"},
		Code:       []string{"code"},
		Message:    []string{"message"},
		CodeForm:   ownCode,
		Rejected:   payoutCodes(),
		NotFound:   []string{codeNotFound},
	}
}

// Client calls the Money API of openapi.yaml. It is safe for concurrent use.
type Client struct{ *oncehttp.Client }

// New returns a client for a valid cfg. It opens no connection; it reads the files of certificates. A nil log discards. The caller closes it.
func New(cfg oncehttp.Config, log *slog.Logger) (*Client, error) {
	if err := cfg.Validate(); err != nil { // before the zero value gets its defaults
		return nil, fmt.Errorf("money: %w", err)
	}
	c := &Client{oncehttp.New(&cfg, mapping())}
	if err := c.Open(log); err != nil {
		return nil, fmt.Errorf("money: %w", err)
	}
	return c, nil
}

// Charge implements API.
func (c *Client) Charge(ctx context.Context, ch Charge) Answer {
	if strings.Contains(ch.Key, "/") { // openapi.yaml has it as one element of a path
		return Answer{Class: Rejected, Text: errKey.Error(), Err: errKey}
	}
	return answerOf(oncehttp.Post(ctx, c.Client, ch.Operation.Path, once.Attempt[struct{}]{
		Kind: ch.Operation.Name, Repeat: once.ByKey, Idempotency: ch.Key, Request: ch.Body,
	}))
}

// Lookup implements API.
func (c *Client) Lookup(ctx context.Context, key string) Answer {
	if strings.Contains(key, "/") {
		return Answer{Class: Rejected, Text: errKey.Error(), Err: errKey}
	}
	return answerOf(oncehttp.Find(ctx, c.Client, lookupPath, once.Lookup{Idempotency: key}))
}

// answerOf returns an answer in the words of the Money API.
func answerOf(a once.Answer) Answer {
	return Answer{
		Class: Class(a.Class), TransactionKey: a.Receipt, RetryAfter: a.RetryAfter, Status: a.Status,
		Code: a.Code, Text: a.Text, Err: a.Err, General: a.General,
	}
}

var _ API = (*Client)(nil)
