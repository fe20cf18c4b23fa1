package money

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	const coded = `{"code":"some_code","message":"words"}`
	seconds := http.Header{"Retry-After": {"7"}}
	for name, c := range map[string]struct {
		lookup  bool
		status  int
		header  http.Header
		body    string
		readErr error
		wait    time.Duration
		class   Class
		verdict verdict
	}{
		"paid":                           {status: 200, body: `{"transactionKey":"t"}`, class: Paid, verdict: healthy},
		"paid, the key echoed":           {status: 201, body: `{"transactionKey":"t","idempotencyKey":"K:1:2"}`, class: Paid, verdict: healthy},
		"another's answer":               {status: 200, body: `{"transactionKey":"t","idempotencyKey":"K:1:3"}`, class: Ambiguous, verdict: failing},
		"200 without a key":              {status: 200, body: `{}`, class: Ambiguous, verdict: failing},
		"200 with a long key":            {status: 200, body: `{"transactionKey":"` + strings.Repeat("t", 129) + `"}`, class: Ambiguous, verdict: failing},
		"200 of html":                    {status: 200, body: `<html>`, class: Ambiguous, verdict: failing},
		"200, two values":                {status: 200, body: `{"transactionKey":"t"}{}`, class: Ambiguous, verdict: failing},
		"200, a number as key":           {status: 200, body: `{"transactionKey":5}`, class: Ambiguous, verdict: failing},
		"200 cut short":                  {status: 200, body: `{"transactionKey":"t"}`, readErr: errors.New("cut"), class: Ambiguous, verdict: failing},
		"202 says nothing":               {status: 202, class: Ambiguous, verdict: failing},
		"202 with a key is only planned": {status: 202, body: `{"transactionKey":"t"}`, class: Ambiguous, verdict: failing},
		"206 with a key":                 {status: 206, body: `{"transactionKey":"t"}`, class: Ambiguous, verdict: failing},
		"204":                            {status: 204, class: Ambiguous, verdict: failing},
		"a blank key":                    {status: 200, body: `{"transactionKey":" "}`, class: Ambiguous, verdict: failing},
		"a key in other case":            {status: 200, body: `{"TransactionKey":"t"}`, class: Ambiguous, verdict: failing},
		"a key to trim":                  {status: 200, body: `{"transactionKey":" t\n","TransactionKey":"u"}`, class: Paid, verdict: healthy},
		"redirect":                       {status: 307, header: http.Header{"Location": {"http://elsewhere"}}, class: Unrecognized, verdict: misconfigured},
		"see other of the API":           {status: 303, body: coded, class: Ambiguous, verdict: misconfigured},
		"400":                            {status: 400, body: coded, class: Rejected, verdict: healthy},
		"422":                            {status: 422, body: coded, class: Rejected, verdict: healthy},
		"400 of a gateway":               {status: 400, body: "Bad Request", class: Unrecognized, verdict: misconfigured},
		"422 of a gateway":               {status: 422, body: `{"code":422,"message":"no"}`, class: Unrecognized, verdict: misconfigured},
		"422 in another form":            {status: 422, body: `{"code":"Unprocessable Entity"}`, class: Unrecognized, verdict: misconfigured},
		"422 with a code in other case":  {status: 422, body: `{"Code":"some_code"}`, class: Unrecognized, verdict: misconfigured},
		"422 cut short":                  {status: 422, body: coded, readErr: errors.New("cut"), class: Unrecognized, verdict: misconfigured},
		"the API's own refusal":          {status: 402, body: coded, class: Rejected, verdict: healthy},
		"410 of the API":                 {status: 410, body: coded, class: Rejected, verdict: healthy},
		"405 of a gateway":               {status: 405, body: "no", class: Unrecognized, verdict: misconfigured},
		"413 of a gateway":               {status: 413, class: Unrecognized, verdict: misconfigured},
		"401":                            {status: 401, body: coded, class: Misconfigured, verdict: misconfigured},
		"401 of a gateway":               {status: 401, class: Unrecognized, verdict: misconfigured},
		"401 with a payout's code":       {status: 401, body: `{"code":"member_blocked"}`, class: Misconfigured, verdict: misconfigured},
		"403 about the payout":           {status: 403, body: `{"code":"member_blocked"}`, class: Rejected, verdict: healthy},
		"403":                            {status: 403, body: coded, class: Misconfigured, verdict: misconfigured},
		"403 of a gateway":               {status: 403, class: Unrecognized, verdict: misconfigured},
		"404 about the payout":           {status: 404, body: `{"code":"member_not_found"}`, class: Rejected, verdict: healthy},
		"404 with a code of 403":         {status: 404, body: `{"code":"member_blocked"}`, class: Misconfigured, verdict: misconfigured},
		"404":                            {status: 404, body: coded, class: Misconfigured, verdict: misconfigured},
		"404 of a gateway":               {status: 404, body: "not here", class: Unrecognized, verdict: misconfigured},
		"404 with the lookup's code":     {status: 404, body: `{"code":"charge_not_found"}`, class: Misconfigured, verdict: misconfigured},
		"408":                            {status: 408, body: coded, class: Retry, verdict: failing},
		"425 with seconds":               {status: 425, header: seconds, body: coded, wait: 7 * time.Second, class: Retry, verdict: failing},
		"408 of a proxy":                 {status: 408, class: Unrecognized, verdict: failing},
		"425 of a proxy with seconds":    {status: 425, header: seconds, wait: 7 * time.Second, class: Unrecognized, verdict: failing},
		"409":                            {status: 409, body: coded, class: Ambiguous, verdict: healthy},
		"409 of a proxy":                 {status: 409, class: Unrecognized, verdict: neutral},
		"429":                            {status: 429, body: coded, wait: time.Second, class: Throttled, verdict: throttling},
		"429 with seconds":               {status: 429, header: seconds, body: coded, wait: 7 * time.Second, class: Throttled, verdict: throttling},
		"429 of a proxy":                 {status: 429, header: seconds, wait: 7 * time.Second, class: Unrecognized, verdict: throttling},
		"503 with seconds":               {status: 503, header: seconds, body: coded, wait: 7 * time.Second, class: Throttled, verdict: throttling},
		"503 of a proxy with seconds":    {status: 503, header: seconds, body: "<html>", wait: 7 * time.Second, class: Unrecognized, verdict: throttling},
		"503 with nonsense":              {status: 503, header: http.Header{"Retry-After": {"soon"}}, body: coded, class: Ambiguous, verdict: failing},
		"503":                            {status: 503, class: Unrecognized, verdict: failing},
		"500":                            {status: 500, body: coded, class: Ambiguous, verdict: failing},
		"500 of a proxy":                 {status: 500, class: Unrecognized, verdict: failing},
		"502":                            {status: 502, class: Unrecognized, verdict: failing},
		"504":                            {status: 504, class: Unrecognized, verdict: failing},
		"a status nobody knows":          {status: 700, class: Unrecognized, verdict: failing},
		"lookup: paid":                   {lookup: true, status: 200, body: `{"transactionKey":"t"}`, class: Paid, verdict: healthy},
		"lookup: no charge":              {lookup: true, status: 404, body: `{"code":"charge_not_found","message":"x"}`, class: NoCharge, verdict: healthy},
		"lookup: 404 of a gateway":       {lookup: true, status: 404, body: "not found", class: Unrecognized, verdict: misconfigured},
		"lookup: 404 with another code":  {lookup: true, status: 404, body: coded, class: Misconfigured, verdict: misconfigured},
		"lookup: refused":                {lookup: true, status: 400, body: coded, class: Rejected, verdict: healthy},
		"lookup: refused by a proxy":     {lookup: true, status: 410, body: "gone", class: Unrecognized, verdict: misconfigured},
		"lookup: gone":                   {lookup: true, status: 410, body: coded, class: Rejected, verdict: healthy},
		"lookup: in flight":              {lookup: true, status: 409, body: coded, class: Ambiguous, verdict: healthy},
		"lookup: 500":                    {lookup: true, status: 500, body: coded, class: Ambiguous, verdict: failing},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			r := &reply{status: c.status, header: c.header, body: []byte(c.body), readErr: c.readErr}
			a, v := classify(&request{lookup: c.lookup, key: "K:1:2"}, r, time.Now(), &cfg)
			require.Equal(t, c.class.String(), a.Class.String())
			require.Equal(t, c.verdict, v)
			require.Equal(t, c.status, a.Status)
			require.Equal(t, c.class == Paid, a.TransactionKey == "t")
			require.Equal(t, c.wait, a.RetryAfter)
			require.Equal(t, c.class == Paid, a.Text == "")
		})
	}
}

func TestThrottledWaits(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.MaxRetryAfter, cfg.DefaultRetryAfter = 20*time.Second, 2*time.Second
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		header http.Header
		want   time.Duration
	}{
		"seconds":                     {http.Header{"Retry-After": {" 7 "}}, 7 * time.Second},
		"zero would spin":             {http.Header{"Retry-After": {"0"}}, minThrottle},
		"capped":                      {http.Header{"Retry-After": {"3600"}}, 20 * time.Second},
		"more than fits":              {http.Header{"Retry-After": {"99999999999999999999999"}}, 20 * time.Second},
		"a date":                      {http.Header{"Retry-After": {now.Add(5 * time.Second).Format(http.TimeFormat)}}, 5 * time.Second},
		"a date of the past":          {http.Header{"Retry-After": {now.Add(-time.Hour).Format(http.TimeFormat)}}, minThrottle},
		"a date by the answer's Date": {http.Header{"Retry-After": {now.Add(time.Hour + 4*time.Second).Format(http.TimeFormat)}, "Date": {now.Add(time.Hour).Format(http.TimeFormat)}}, 4 * time.Second},
		"nonsense":                    {http.Header{"Retry-After": {"-5"}}, 2 * time.Second},
		"none":                        {nil, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := classify(&request{key: "k"}, &reply{status: 429, header: c.header, body: []byte(`{"code":"busy"}`)}, now, &cfg)
			require.Equal(t, Throttled, a.Class)
			require.Equal(t, c.want, a.RetryAfter)
		})
	}
}

func TestTextIsForPeople(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	text := func(status int, body string) string {
		a, _ := classify(&request{key: "k", secret: "tok-123"}, &reply{status: status, body: []byte(body)}, time.Now(), &cfg)
		return a.Text
	}
	require.Equal(t, "422 Unprocessable Entity: limit too much", text(422, `{"code":"limit","message":"too\nmuch\u0007"}`))
	require.Equal(t, "401 Unauthorized: [redacted] is not valid", text(401, "tok-123 is not valid"))
	require.Equal(t, "401 Unauthorized: bad [redacted]", text(401, `{"code":"bad","message":"tok\u002d123"}`))
	long := text(500, strings.Repeat("a", 200)+strings.Repeat("tok-123", 100))
	require.LessOrEqual(t, len(long), maxTextLen)
	require.NotContains(t, long, "tok")
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"", "0", "7", "007", "-1", "1e3", "9223372036854775808", " 5 ", "Fri, 02 Jan 2026 03:04:05 GMT", "Friday, 02-Jan-26 03:04:05 GMT", "Fri Jan  2 03:04:05 2026", "soon"} {
		f.Add(s, "", int64(60))
		f.Add(s, "Fri, 02 Jan 2026 03:04:00 GMT", int64(1))
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Fuzz(func(t *testing.T, value, date string, seconds int64) {
		longest := time.Duration(seconds%86400+86401) * time.Second
		wait, ok := retryAfter(http.Header{"Retry-After": {value}, "Date": {date}}, now, longest)
		if ok {
			require.GreaterOrEqual(t, wait, minThrottle)
			require.LessOrEqual(t, wait, longest)
		} else {
			require.Zero(t, wait)
		}
		require.True(t, ok || !regexp.MustCompile(`^[0-9]+$`).MatchString(strings.TrimSpace(value)), "digits can always be read")
	})
}

func FuzzClassify(f *testing.F) {
	f.Add(200, `{"transactionKey":"t"}`, "", false, "secret")
	f.Add(404, `{"code":"charge_not_found"}`, "", true, "secret")
	f.Add(503, "", "5", false, "")
	f.Add(422, "{\"code\":\"\xff\u2028\"}", "", false, "s")
	cfg := DefaultConfig()
	f.Fuzz(func(t *testing.T, status int, body, after string, lookup bool, secret string) {
		if len(secret) < 4 || strings.Contains("[redacted]", secret) {
			secret = ""
		}
		r := &reply{status: status, header: http.Header{"Retry-After": {after}}, body: []byte(body)}
		a, v := classify(&request{lookup: lookup, key: "K:1:2", secret: secret}, r, time.Now(), &cfg)
		require.Equal(t, a.Class == Paid, a.TransactionKey != "")
		if a.Class == Paid {
			require.True(t, (status == 200 || status == 201) && v == healthy)
		}
		if a.Class == NoCharge {
			require.True(t, lookup && status == 404)
		}
		switch a.Class {
		case Rejected:
			require.True(t, status >= 400 && status < 500 && a.Code != "")
		case Throttled, Misconfigured, Retry, NoCharge:
			require.NotEmpty(t, a.Code, "only the API's own words deny a charge")
		case Unrecognized:
			require.Empty(t, a.Code)
		}
		require.NotEqual(t, NotSent, a.Class, "an answer was sent for")
		require.True(t, a.Class != Throttled || a.RetryAfter > 0)
		require.LessOrEqual(t, len(a.Text), maxTextLen)
		require.LessOrEqual(t, len(a.Code), 64+len("[redacted]"))
		require.True(t, utf8.ValidString(a.Text) && utf8.ValidString(a.Code))
		require.NotContains(t, a.Text+a.Code, "\n")
	})
}

func FuzzParsePlain(f *testing.F) {
	for _, body := range []string{
		`{"transactionKey":"t","idempotencyKey":"K:1:2"}`, " {\n\t\"transactionKey\" : \"t\" , \"a\":\"\" }\r\n", `{"transactionKey":"t"}{}`, `{"transactionKey":"t",}`,
		`{"transactionKey":"a","transactionKey":"b"}`, `{"transaction\u004bey":"t"}`, `{"a":{"transactionKey":"t"}}`, `{"transactionKey":"\t"}`,
		"{\"transactionKey\":\"\xff\"}", `{"transactionKey":"t"`, `{"transactionKey" "t"}`, `{"transactionKey":"t" "a":"b"}`, "\v{}", `{}`, `[]`, ``,
	} {
		f.Add(body)
	}
	names := []string{"transactionKey", "idempotencyKey"}
	f.Fuzz(func(t *testing.T, body string) {
		values, ok := parsePlain([]byte(body), names)
		if !ok {
			return
		}
		want, err := parseAny([]byte(body), names)
		require.NoError(t, err)
		require.Equal(t, want, values)
	})
}
