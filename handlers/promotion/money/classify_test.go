package money_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// The classes of what the Money API answers, by the names and codes of openapi.yaml. What an answer means for
// the breaker is tested in oncehttp.
func TestClassify(t *testing.T) {
	t.Parallel()
	const coded = `{"code":"some_code","message":"words"}`
	seconds := http.Header{"Retry-After": {"7"}}
	for name, c := range map[string]struct {
		lookup bool
		status int
		header http.Header
		body   string
		cut    bool
		wait   time.Duration
		class  money.Class
	}{
		"paid":                           {status: 200, body: `{"transactionKey":"t"}`, class: money.Paid},
		"paid, the key echoed":           {status: 201, body: `{"transactionKey":"t","idempotencyKey":"K:1:2"}`, class: money.Paid},
		"another's answer":               {status: 200, body: `{"transactionKey":"t","idempotencyKey":"K:1:3"}`, class: money.Ambiguous},
		"200 without a key":              {status: 200, body: `{}`, class: money.Ambiguous},
		"200 with a long key":            {status: 200, body: `{"transactionKey":"` + strings.Repeat("t", 129) + `"}`, class: money.Ambiguous},
		"200 of html":                    {status: 200, body: `<html>`, class: money.Ambiguous},
		"200, two values":                {status: 200, body: `{"transactionKey":"t"}{}`, class: money.Ambiguous},
		"200, a number as key":           {status: 200, body: `{"transactionKey":5}`, class: money.Ambiguous},
		"200 cut short":                  {status: 200, body: `{"transactionKey":"t"}`, cut: true, class: money.Ambiguous},
		"202 says nothing":               {status: 202, class: money.Ambiguous},
		"202 with a key is only planned": {status: 202, body: `{"transactionKey":"t"}`, class: money.Ambiguous},
		"206 with a key":                 {status: 206, body: `{"transactionKey":"t"}`, class: money.Ambiguous},
		"204":                            {status: 204, class: money.Ambiguous},
		"a blank key":                    {status: 200, body: `{"transactionKey":" "}`, class: money.Ambiguous},
		"a key in other case":            {status: 200, body: `{"TransactionKey":"t"}`, class: money.Ambiguous},
		"a key to trim":                  {status: 200, body: `{"transactionKey":" t\n","TransactionKey":"u"}`, class: money.Paid},
		"redirect":                       {status: 307, header: http.Header{"Location": {"http://elsewhere"}}, class: money.Unrecognized},
		"see other of the API":           {status: 303, body: coded, class: money.Ambiguous},
		"400":                            {status: 400, body: coded, class: money.Rejected},
		"422":                            {status: 422, body: coded, class: money.Rejected},
		"400 of a gateway":               {status: 400, body: "Bad Request", class: money.Unrecognized},
		"422 of a gateway":               {status: 422, body: `{"code":422,"message":"no"}`, class: money.Unrecognized},
		"422 in another form":            {status: 422, body: `{"code":"Unprocessable Entity"}`, class: money.Unrecognized},
		"422 with a code in other case":  {status: 422, body: `{"Code":"some_code"}`, class: money.Unrecognized},
		"422 cut short":                  {status: 422, body: coded, cut: true, class: money.Unrecognized},
		"the API's own refusal":          {status: 402, body: coded, class: money.Rejected},
		"410 of the API":                 {status: 410, body: coded, class: money.Rejected},
		"405 of a gateway":               {status: 405, body: "no", class: money.Unrecognized},
		"413 of a gateway":               {status: 413, class: money.Unrecognized},
		"401":                            {status: 401, body: coded, class: money.Misconfigured},
		"401 of a gateway":               {status: 401, class: money.Unrecognized},
		"401 with a payout's code":       {status: 401, body: `{"code":"member_blocked"}`, class: money.Misconfigured},
		"403 about the payout":           {status: 403, body: `{"code":"member_blocked"}`, class: money.Rejected},
		"403":                            {status: 403, body: coded, class: money.Misconfigured},
		"403 of a gateway":               {status: 403, class: money.Unrecognized},
		"404 about the payout":           {status: 404, body: `{"code":"member_not_found"}`, class: money.Rejected},
		"404 with a code of 403":         {status: 404, body: `{"code":"member_blocked"}`, class: money.Misconfigured},
		"404":                            {status: 404, body: coded, class: money.Misconfigured},
		"404 of a gateway":               {status: 404, body: "not here", class: money.Unrecognized},
		"404 with the lookup's code":     {status: 404, body: `{"code":"charge_not_found"}`, class: money.Misconfigured},
		"408":                            {status: 408, body: coded, class: money.Retry},
		"425 with seconds":               {status: 425, header: seconds, body: coded, wait: 7 * time.Second, class: money.Retry},
		"408 of a proxy":                 {status: 408, class: money.Unrecognized},
		"425 of a proxy with seconds":    {status: 425, header: seconds, wait: 7 * time.Second, class: money.Unrecognized},
		"409":                            {status: 409, body: coded, class: money.Ambiguous},
		"409 of a proxy":                 {status: 409, class: money.Unrecognized},
		"429":                            {status: 429, body: coded, wait: time.Second, class: money.Throttled},
		"429 with seconds":               {status: 429, header: seconds, body: coded, wait: 7 * time.Second, class: money.Throttled},
		"429 of a proxy":                 {status: 429, header: seconds, wait: 7 * time.Second, class: money.Unrecognized},
		"503 with seconds":               {status: 503, header: seconds, body: coded, wait: 7 * time.Second, class: money.Throttled},
		"503 of a proxy with seconds":    {status: 503, header: seconds, body: "<html>", wait: 7 * time.Second, class: money.Unrecognized},
		"503 with nonsense":              {status: 503, header: http.Header{"Retry-After": {"soon"}}, body: coded, class: money.Ambiguous},
		"503":                            {status: 503, class: money.Unrecognized},
		"500":                            {status: 500, body: coded, class: money.Ambiguous},
		"500 of a proxy":                 {status: 500, class: money.Unrecognized},
		"502":                            {status: 502, class: money.Unrecognized},
		"504":                            {status: 504, class: money.Unrecognized},
		"a status nobody knows":          {status: 700, class: money.Unrecognized},
		"lookup: paid":                   {lookup: true, status: 200, body: `{"transactionKey":"t"}`, class: money.Paid},
		"lookup: no charge":              {lookup: true, status: 404, body: `{"code":"charge_not_found","message":"x"}`, class: money.NoCharge},
		"lookup: 404 of a gateway":       {lookup: true, status: 404, body: "not found", class: money.Unrecognized},
		"lookup: 404 with another code":  {lookup: true, status: 404, body: coded, class: money.Misconfigured},
		"lookup: refused":                {lookup: true, status: 400, body: coded, class: money.Rejected},
		"lookup: refused by a proxy":     {lookup: true, status: 410, body: "gone", class: money.Unrecognized},
		"lookup: gone":                   {lookup: true, status: 410, body: coded, class: money.Rejected},
		"lookup: in flight":              {lookup: true, status: 409, body: coded, class: money.Ambiguous},
		"lookup: 500":                    {lookup: true, status: 500, body: coded, class: money.Ambiguous},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for name, values := range c.header {
					w.Header()[name] = values
				}
				if c.cut {
					w.Header().Set("Content-Length", "1000")
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			}))
			defer s.Close()
			client := newClient(t, s.URL, func(cfg *oncehttp.Config) { cfg.DefaultRetryAfter = time.Second })
			call := func() money.Answer { return client.Charge(t.Context(), charge("K:1:2")) }
			if c.lookup {
				call = func() money.Answer { return client.Lookup(t.Context(), "K:1:2") }
			}
			a := call()
			require.Equal(t, c.class.String(), a.Class.String(), a.Text)
			require.Equal(t, c.status, a.Status)
			require.Equal(t, c.class == money.Paid, a.TransactionKey == "t")
			require.Equal(t, c.wait, a.RetryAfter)
			require.Equal(t, c.class == money.Paid, a.Text == "")
		})
	}
}

// The ledger, dead letters and the runbook have these names.
func TestTheNamesOfClasses(t *testing.T) {
	t.Parallel()
	for want, class := range map[string]money.Class{
		"ambiguous": money.Ambiguous, "paid": money.Paid, "not_sent": money.NotSent, "throttled": money.Throttled, "rejected": money.Rejected,
		"own_fault": money.Misconfigured, "retry": money.Retry, "unrecognized": money.Unrecognized, "no_charge": money.NoCharge,
	} {
		require.Equal(t, want, class.String())
	}
}
