package oncehttp

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
)

// testMapping is that of an API with all members at the top.
func testMapping() Mapping {
	return Mapping{
		Name: "billing", Receipt: []string{"id"}, Key: []string{"key"}, NotFound: []string{"invoice_not_found"},
		Rejected: map[int][]string{http.StatusForbidden: {"customer_blocked"}, http.StatusNotFound: {"customer_not_found"}, http.StatusConflict: {"number_taken"}},
		Done:     []string{"created_before"},
	}.completed()
}

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
		class   once.Class
		verdict verdict
	}{
		"done":                               {status: 200, body: `{"id":"t"}`, class: once.Done, verdict: healthy},
		"done, the key echoed":               {status: 201, body: `{"id":"t","key":"K:1:2"}`, class: once.Done, verdict: healthy},
		"another's answer":                   {status: 200, body: `{"id":"t","key":"K:1:3"}`, class: once.Unclear, verdict: failing},
		"200 without a receipt":              {status: 200, body: `{}`, class: once.Unclear, verdict: failing},
		"200 with a long receipt":            {status: 200, body: `{"id":"` + strings.Repeat("t", 256) + `"}`, class: once.Unclear, verdict: failing},
		"200 of html":                        {status: 200, body: `<html>`, class: once.Unclear, verdict: failing},
		"200, two values":                    {status: 200, body: `{"id":"t"}{}`, class: once.Unclear, verdict: failing},
		"200, a number as receipt":           {status: 200, body: `{"id":5}`, class: once.Unclear, verdict: failing},
		"200 cut short":                      {status: 200, body: `{"id":"t"}`, readErr: errors.New("cut"), class: once.Unclear, verdict: failing},
		"202 says nothing":                   {status: 202, class: once.Unclear, verdict: failing},
		"202 with a receipt is only planned": {status: 202, body: `{"id":"t"}`, class: once.Unclear, verdict: failing},
		"206 with a receipt":                 {status: 206, body: `{"id":"t"}`, class: once.Unclear, verdict: failing},
		"204":                                {status: 204, class: once.Unclear, verdict: failing},
		"a blank receipt":                    {status: 200, body: `{"id":" "}`, class: once.Unclear, verdict: failing},
		"a receipt in other case":            {status: 200, body: `{"ID":"t"}`, class: once.Unclear, verdict: failing},
		"a receipt to trim":                  {status: 200, body: `{"id":" t\n","ID":"u"}`, class: once.Done, verdict: healthy},
		"redirect":                           {status: 307, header: http.Header{"Location": {"http://elsewhere"}}, class: once.Unrecognized, verdict: misconfigured},
		"see other of the API":               {status: 303, body: coded, class: once.Unclear, verdict: misconfigured},
		"400":                                {status: 400, body: coded, class: once.Rejected, verdict: healthy},
		"422":                                {status: 422, body: coded, class: once.Rejected, verdict: healthy},
		"400 of a gateway":                   {status: 400, body: "Bad Request", class: once.Unrecognized, verdict: misconfigured},
		"422 of a gateway":                   {status: 422, body: `{"code":422,"message":"no"}`, class: once.Unrecognized, verdict: misconfigured},
		"422 in another form":                {status: 422, body: `{"code":"Unprocessable Entity"}`, class: once.Unrecognized, verdict: misconfigured},
		"422 with a code in other case":      {status: 422, body: `{"Code":"some_code"}`, class: once.Unrecognized, verdict: misconfigured},
		"422 cut short":                      {status: 422, body: coded, readErr: errors.New("cut"), class: once.Unrecognized, verdict: misconfigured},
		"the API's own refusal":              {status: 402, body: coded, class: once.Rejected, verdict: healthy},
		"410 of the API":                     {status: 410, body: coded, class: once.Rejected, verdict: healthy},
		"405 of a gateway":                   {status: 405, body: "no", class: once.Unrecognized, verdict: misconfigured},
		"413 of a gateway":                   {status: 413, class: once.Unrecognized, verdict: misconfigured},
		"401":                                {status: 401, body: coded, class: once.Misconfigured, verdict: misconfigured},
		"401 of a gateway":                   {status: 401, class: once.Unrecognized, verdict: misconfigured},
		"401 with an effect's code":          {status: 401, body: `{"code":"customer_blocked"}`, class: once.Misconfigured, verdict: misconfigured},
		"403 about the effect":               {status: 403, body: `{"code":"customer_blocked"}`, class: once.Rejected, verdict: healthy},
		"403":                                {status: 403, body: coded, class: once.Misconfigured, verdict: misconfigured},
		"403 of a gateway":                   {status: 403, class: once.Unrecognized, verdict: misconfigured},
		"404 about the effect":               {status: 404, body: `{"code":"customer_not_found"}`, class: once.Rejected, verdict: healthy},
		"404 with a code of 403":             {status: 404, body: `{"code":"customer_blocked"}`, class: once.Misconfigured, verdict: misconfigured},
		"404":                                {status: 404, body: coded, class: once.Misconfigured, verdict: misconfigured},
		"404 of a gateway":                   {status: 404, body: "not here", class: once.Unrecognized, verdict: misconfigured},
		"404 with the lookup's code":         {status: 404, body: `{"code":"invoice_not_found"}`, class: once.Misconfigured, verdict: misconfigured},
		"408":                                {status: 408, body: coded, class: once.Retry, verdict: failing},
		"425 with seconds":                   {status: 425, header: seconds, body: coded, wait: 7 * time.Second, class: once.Retry, verdict: failing},
		"408 of a proxy":                     {status: 408, class: once.Unrecognized, verdict: failing},
		"425 of a proxy with seconds":        {status: 425, header: seconds, wait: 7 * time.Second, class: once.Unrecognized, verdict: failing},
		"409":                                {status: 409, body: coded, class: once.Unclear, verdict: healthy},
		"409 of a proxy":                     {status: 409, class: once.Unrecognized, verdict: neutral},
		"429":                                {status: 429, body: coded, wait: time.Second, class: once.Throttled, verdict: throttling},
		"429 with seconds":                   {status: 429, header: seconds, body: coded, wait: 7 * time.Second, class: once.Throttled, verdict: throttling},
		"429 of a proxy":                     {status: 429, header: seconds, wait: 7 * time.Second, class: once.Unrecognized, verdict: throttling},
		"503 with seconds":                   {status: 503, header: seconds, body: coded, wait: 7 * time.Second, class: once.Throttled, verdict: throttling},
		"503 of a proxy with seconds":        {status: 503, header: seconds, body: "<html>", wait: 7 * time.Second, class: once.Unrecognized, verdict: throttling},
		"503 with nonsense":                  {status: 503, header: http.Header{"Retry-After": {"soon"}}, body: coded, class: once.Unclear, verdict: failing},
		"503":                                {status: 503, class: once.Unrecognized, verdict: failing},
		"500":                                {status: 500, body: coded, class: once.Unclear, verdict: failing},
		"500 of a proxy":                     {status: 500, class: once.Unrecognized, verdict: failing},
		"502":                                {status: 502, class: once.Unrecognized, verdict: failing},
		"504":                                {status: 504, class: once.Unrecognized, verdict: failing},
		"a status nobody knows":              {status: 700, class: once.Unrecognized, verdict: failing},
		"lookup: done":                       {lookup: true, status: 200, body: `{"id":"t"}`, class: once.Done, verdict: healthy},
		"lookup: not done":                   {lookup: true, status: 404, body: `{"code":"invoice_not_found","message":"x"}`, class: once.NotDone, verdict: healthy},
		"lookup: 404 of a gateway":           {lookup: true, status: 404, body: "not found", class: once.Unrecognized, verdict: misconfigured},
		"lookup: 404 with another code":      {lookup: true, status: 404, body: coded, class: once.Misconfigured, verdict: misconfigured},
		"lookup: refused":                    {lookup: true, status: 400, body: coded, class: once.Rejected, verdict: healthy},
		"lookup: refused by a proxy":         {lookup: true, status: 410, body: "gone", class: once.Unrecognized, verdict: misconfigured},
		"lookup: gone":                       {lookup: true, status: 410, body: coded, class: once.Rejected, verdict: healthy},
		"lookup: in flight":                  {lookup: true, status: 409, body: coded, class: once.Unclear, verdict: healthy},
		"lookup: 500":                        {lookup: true, status: 500, body: coded, class: once.Unclear, verdict: failing},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, m := DefaultConfig(), testMapping()
			r := &reply{status: c.status, header: c.header, body: []byte(c.body), readErr: c.readErr}
			a, v := classify(&m, &request{lookup: c.lookup, key: "K:1:2"}, r, time.Now(), &cfg)
			require.Equal(t, c.class.String(), a.Class.String())
			require.Equal(t, c.verdict, v)
			require.Equal(t, c.status, a.Status)
			require.Equal(t, c.class == once.Done, a.Receipt == "t")
			require.Equal(t, c.wait, a.RetryAfter)
			require.Equal(t, c.class == once.Done, a.Text == "")
		})
	}
}

func TestThrottledWaits(t *testing.T) {
	t.Parallel()
	cfg, m := DefaultConfig(), testMapping()
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
			a, _ := classify(&m, &request{key: "k"}, &reply{status: 429, header: c.header, body: []byte(`{"code":"busy"}`)}, now, &cfg)
			require.Equal(t, once.Throttled, a.Class)
			require.Equal(t, c.want, a.RetryAfter)
		})
	}
}

func TestTextIsForPeople(t *testing.T) {
	t.Parallel()
	cfg, m := DefaultConfig(), testMapping()
	text := func(status int, body string) string {
		a, _ := classify(&m, &request{key: "k", secret: "tok-123"}, &reply{status: status, body: []byte(body)}, time.Now(), &cfg)
		return a.Text
	}
	require.Equal(t, "422 Unprocessable Entity: limit too much", text(422, `{"code":"limit","message":"too\nmuch\u0007"}`))
	require.Equal(t, "401 Unauthorized: [redacted] is not valid", text(401, "tok-123 is not valid"))
	require.Equal(t, "401 Unauthorized: bad [redacted]", text(401, `{"code":"bad","message":"tok\u002d123"}`))
	long := text(500, strings.Repeat("a", 200)+strings.Repeat("tok-123", 100))
	require.LessOrEqual(t, len(long), maxTextLen)
	require.NotContains(t, long, "tok")
}

// A redirect may carry a token, which must not stay in the ledger.
func TestTheTextOfARedirectNamesTheServerOnly(t *testing.T) {
	t.Parallel()
	cfg, m := DefaultConfig(), testMapping()
	for location, want := range map[string]string{
		"https://ann:pass@login.example:8443/start/tok-1?ticket=tok-2#tok-3": "307 Temporary Redirect: redirects are not followed: to https://login.example:8443",
		"/login?ticket=tok-2": "307 Temporary Redirect: redirects are not followed: to another path of the server",
		"":                    "307 Temporary Redirect: redirects are not followed: it names no address",
		"http://%zz/tok-1":    "307 Temporary Redirect: redirects are not followed: its address can't be read",
	} {
		a, _ := classify(&m, &request{key: "k"}, &reply{status: http.StatusTemporaryRedirect, header: http.Header{"Location": {location}}}, time.Now(), &cfg)
		require.Equal(t, want, a.Text)
	}
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
	f.Add(uint8(0), 200, `{"id":"t"}`, "", false, "secret")
	f.Add(uint8(0), 404, `{"code":"invoice_not_found"}`, "", true, "secret")
	f.Add(uint8(0), 503, "", "5", false, "")
	f.Add(uint8(0), 422, "{\"code\":\"\xff\u2028\"}", "", false, "s")
	f.Add(uint8(0), 409, `{"code":"created_before","id":"t","key":"K:1:3"}`, "", false, "")
	f.Add(uint8(1), 201, `{"data":{"id":17}}`, "", false, "")
	f.Add(uint8(1), 409, `{"errors":[{"code":"E-17","detail":"x"}]}`, "", false, "")
	f.Add(uint8(2), 200, `{"key":"K:1:2"}`, "", false, "")
	cfg := DefaultConfig()
	mappings := []Mapping{
		testMapping(),
		Mapping{Receipt: []string{"data", "id"}, NumericReceipt: true, Code: []string{"errors", "0", "code"}, Message: []string{"errors", "0", "detail"}, CodeForm: regexp.MustCompile(`.`)}.completed(),
		Mapping{Key: []string{"key"}, Done: []string{"done"}}.completed(),
	}
	f.Fuzz(func(t *testing.T, form uint8, status int, body, after string, lookup bool, secret string) {
		if len(secret) < 4 || strings.Contains("[redacted]", secret) {
			secret = ""
		}
		m := mappings[int(form)%len(mappings)]
		r := &reply{status: status, header: http.Header{"Retry-After": {after}}, body: []byte(body)}
		a, v := classify(&m, &request{lookup: lookup, key: "K:1:2", secret: secret}, r, time.Now(), &cfg)
		require.LessOrEqual(t, len(a.Receipt), m.MaxReceipt)
		if a.Class == once.Done {
			require.Equal(t, healthy, v)
			require.True(t, status == 200 || status == 201 || status >= 400 && status < 500 && a.Code != "")
			require.True(t, a.Code != "" || len(m.Receipt) == 0 || a.Receipt != "")
		} else {
			require.Empty(t, a.Receipt)
		}
		if a.Class == once.NotDone {
			require.True(t, lookup && status == 404)
		}
		switch a.Class {
		case once.Rejected:
			require.True(t, status >= 400 && status < 500 && a.Code != "")
		case once.Throttled, once.Misconfigured, once.Retry, once.NotDone:
			require.NotEmpty(t, a.Code, "only the far side's own words deny an effect")
		case once.Unrecognized:
			require.Empty(t, a.Code)
		}
		require.NotEqual(t, once.NotSent, a.Class, "an answer was sent for")
		require.True(t, a.Class != once.Throttled || a.RetryAfter > 0)
		require.LessOrEqual(t, len(a.Text), maxTextLen)
		require.LessOrEqual(t, len(a.Code), maxCodeLen)
		require.True(t, utf8.ValidString(a.Text) && utf8.ValidString(a.Code))
		require.NotContains(t, a.Text+a.Code, "\n")
	})
}

func FuzzParsePlain(f *testing.F) {
	for _, body := range []string{
		`{"id":"t","key":"K:1:2"}`, " {\n\t\"id\" : \"t\" , \"a\":\"\" }\r\n", `{"id":"t"}{}`, `{"id":"t",}`,
		`{"id":"a","id":"b"}`, `{"transaction\u004bey":"t"}`, `{"a":{"id":"t"}}`, `{"id":"\t"}`,
		"{\"id\":\"\xff\"}", `{"id":"t"`, `{"id" "t"}`, `{"id":"t" "a":"b"}`, "\v{}", `{}`, `[]`, ``,
	} {
		f.Add(body)
	}
	fields := []field{{path: []string{"id"}}, {}, {path: []string{"key"}}}
	names, ok := plainNames(fields)
	require.True(f, ok)
	f.Fuzz(func(t *testing.T, body string) {
		values, ok := parsePlain([]byte(body), names)
		if !ok {
			return
		}
		want, err := parseAny([]byte(body), fields)
		require.NoError(t, err)
		require.Equal(t, want, values)
	})
}

// FuzzParse: any document is read without a panic, and a member that is there is found.
func FuzzParse(f *testing.F) {
	f.Add(`{"a":{"b":[{"c":"x"}]}}`, "a", "b", "0")
	f.Add(`{"a": [ 1, "x" ] }`, "a", "1", "")
	f.Add(`{"a": {"b": null}}`, "a", "b", "c")
	f.Add(`{"a":[]}`, "a", "-1", "9999999999999999999")
	f.Fuzz(func(t *testing.T, body, a, b, c string) {
		fields := []field{{path: []string{a}}, {path: []string{a, b}, number: true}, {path: []string{a, b, c}}, {}}
		values, err := parse([]byte(body), fields...)
		require.Len(t, values, len(fields))
		require.Empty(t, values[3])
		if err != nil {
			require.Equal(t, make([]string, len(fields)), values)
		}
	})
}
