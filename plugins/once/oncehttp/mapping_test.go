package oncehttp

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
)

// What a mapping can say beyond testMapping.
func TestMappings(t *testing.T) {
	t.Parallel()
	nested := Mapping{
		Name: "nested", Receipt: []string{"data", "id"}, NumericReceipt: true, MaxReceipt: 4, Key: []string{"data", "meta", "key"},
		Code: []string{"errors", "0", "code"}, Message: []string{"errors", "0", "detail"}, CodeForm: regexp.MustCompile(`^E-[0-9]+$`),
		Done: []string{"E-7"}, Rejected: map[int][]string{http.StatusConflict: {"E-8"}}, NotFound: []string{"E-9"},
	}
	keyOnly := Mapping{Name: "key-only", Key: []string{"key"}}
	for name, c := range map[string]struct {
		mapping Mapping
		lookup  bool
		status  int
		body    string
		want    once.Answer // its class, receipt and code
		text    string
	}{
		"a nested receipt":            {nested, false, 200, `{"data":{"id":"a-1"}}`, once.Answer{Class: once.Done, Receipt: "a-1"}, ""},
		"a number as receipt":         {nested, false, 201, `{"data":{"id": 17 }}`, once.Answer{Class: once.Done, Receipt: "17"}, ""},
		"a boolean as receipt":        {nested, false, 201, `{"data":{"id":true}}`, once.Answer{}, "data.id"},
		"a nested key":                {nested, false, 200, `{"data":{"id":1,"meta":{"key":"K:1:2"}}}`, once.Answer{Class: once.Done, Receipt: "1"}, ""},
		"another's nested key":        {nested, false, 200, `{"data":{"id":1,"meta":{"key":"K:1:3"}}}`, once.Answer{}, "another idempotency key"},
		"a text where an object is":   {nested, false, 200, `{"data":"x"}`, once.Answer{}, "data.id must have 1 to 4 characters, got 0"},
		"a receipt that is too long":  {nested, false, 200, `{"data":{"id":12345}}`, once.Answer{}, "got 5"},
		"a code in an array":          {nested, false, 422, `{"errors":[{"code":"E-5","detail":"no"}]}`, once.Answer{Class: once.Rejected, Code: "E-5"}, "422 Unprocessable Entity: E-5 no"},
		"an empty array":              {nested, false, 422, `{"errors":[]}`, once.Answer{Class: once.Unrecognized}, "errors"},
		"a code of another form":      {nested, false, 422, `{"errors":[{"code":"some_code"}]}`, once.Answer{Class: once.Unrecognized}, "some_code"},
		"done before":                 {nested, false, 409, `{"errors":[{"code":"E-7"}],"data":{"id":1}}`, once.Answer{Class: once.Done, Receipt: "1", Code: "E-7"}, "E-7"},
		"done before, as a 422":       {nested, false, 422, `{"errors":[{"code":"E-7"}]}`, once.Answer{Class: once.Done, Code: "E-7"}, "E-7"},
		"another's, done before":      {nested, false, 409, `{"errors":[{"code":"E-7"}],"data":{"meta":{"key":"x"}}}`, once.Answer{Code: "E-7"}, "E-7"},
		"done before is no 401":       {nested, false, 401, `{"errors":[{"code":"E-7"}]}`, once.Answer{Class: once.Misconfigured, Code: "E-7"}, "E-7"},
		"done before is no 429":       {nested, false, 429, `{"errors":[{"code":"E-7"}]}`, once.Answer{Class: once.Throttled, Code: "E-7"}, "E-7"},
		"done before is no 500":       {nested, false, 500, `{"errors":[{"code":"E-7"}]}`, once.Answer{Code: "E-7"}, "E-7"},
		"done before is no redirect":  {nested, false, 303, `{"errors":[{"code":"E-7"}]}`, once.Answer{Code: "E-7"}, "E-7"},
		"a 409 about the effect":      {nested, false, 409, `{"errors":[{"code":"E-8"}]}`, once.Answer{Class: once.Rejected, Code: "E-8"}, "E-8"},
		"a 409 in flight":             {nested, false, 409, `{"errors":[{"code":"E-6"}]}`, once.Answer{Code: "E-6"}, "E-6"},
		"not there":                   {nested, true, 404, `{"errors":[{"code":"E-9"}]}`, once.Answer{Class: once.NotDone, Code: "E-9"}, "E-9"},
		"not there, but a send":       {nested, false, 404, `{"errors":[{"code":"E-9"}]}`, once.Answer{Class: once.Misconfigured, Code: "E-9"}, "E-9"},
		"no such address":             {nested, true, 404, `{"errors":[{"code":"E-1"}]}`, once.Answer{Class: once.Misconfigured, Code: "E-1"}, "E-1"},
		"the key proves it":           {keyOnly, false, 200, `{"key":"K:1:2","more":{}}`, once.Answer{Class: once.Done}, ""},
		"without the key":             {keyOnly, false, 200, `{"id":"t"}`, once.Answer{}, "no idempotency key in key"},
		"the key of another":          {keyOnly, false, 200, `{"key":"K:1:3"}`, once.Answer{}, "another idempotency key"},
		"a code by default":           {keyOnly, false, 422, `{"code":"INVALID_ARGUMENT"}`, once.Answer{Class: once.Rejected, Code: "INVALID_ARGUMENT"}, "INVALID_ARGUMENT"},
		"a lookup without NotFound":   {keyOnly, true, 404, `{"code":"not_found"}`, once.Answer{Class: once.Misconfigured, Code: "not_found"}, "not_found"},
		"a code by default is no URL": {keyOnly, false, 422, `{"code":"https://x"}`, once.Answer{Class: once.Unrecognized}, "https://x"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, m := DefaultConfig(), c.mapping.completed()
			require.NoError(t, c.mapping.Validate())
			a, _ := classify(&m, &request{lookup: c.lookup, key: "K:1:2"}, &reply{status: c.status, body: []byte(c.body)}, time.Now(), &cfg)
			require.Equal(t, c.want.Class.String(), a.Class.String(), a.Text)
			require.Equal(t, c.want.Receipt, a.Receipt)
			require.Equal(t, c.want.Code, a.Code)
			require.Contains(t, a.Text, c.text)
		})
	}
}

func TestAWrongMappingNamesItsMistakes(t *testing.T) {
	t.Parallel()
	good := Mapping{Name: "billing", Receipt: []string{"id"}}
	require.NoError(t, good.Validate())
	for want, change := range map[string]func(*Mapping){
		"Name: must begin with a lower-case letter": func(m *Mapping) { m.Name = "The API" },
		"Name: must":                             func(m *Mapping) { m.Name = "" },
		"Header: must be the name":               func(m *Mapping) { m.Header = "Idempotency Key" },
		"Header: must not be Content":            func(m *Mapping) { m.Header = "content-type" },
		"MaxKey: must be >= 0":                   func(m *Mapping) { m.MaxKey = -1 },
		"MaxReceipt: must be 0 to 255":           func(m *Mapping) { m.MaxReceipt = 256 },
		"nothing proves that an effect was done": func(m *Mapping) { m.Receipt = nil },
		"403, 404 and 409, got 422":              func(m *Mapping) { m.Rejected = map[int][]string{422: {"x"}} },
		`Rejected: "a b" has not`:                func(m *Mapping) { m.Rejected = map[int][]string{403: {"a b"}} },
		`Done: "" has not`:                       func(m *Mapping) { m.Done = []string{""} },
		`NotFound: "x:y" has not`:                func(m *Mapping) { m.NotFound = []string{"x:y"} },
		`NotFound: must not have "gone"`:         func(m *Mapping) { m.NotFound, m.Rejected = []string{"gone"}, map[int][]string{404: {"gone"}} },
		`Done: "lower" has not the form`:         func(m *Mapping) { m.Done, m.CodeForm = []string{"lower"}, regexp.MustCompile(`^[A-Z]+$`) },
		"Header: must be the name of a h":        func(m *Mapping) { m.Header = strings.Repeat("k", 101) },
	} {
		m := good
		change(&m)
		require.ErrorContains(t, m.Validate(), want)
		cfg := DefaultConfig()
		cfg.URL = "http://127.0.0.1:1"
		require.ErrorContains(t, New(&cfg, m).Open(nil), want)
	}
}
