package money_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

func loadOpenAPI(t *testing.T) (*openapi3.T, routers.Router) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	require.NoError(t, err)
	require.NoError(t, doc.Validate(context.Background()))
	router, err := gorillamux.NewRouter(doc)
	require.NoError(t, err)
	return doc, router
}

// check validates one exchange against openapi.yaml.
func check(router routers.Router, req *http.Request, reqBody []byte, status int, header http.Header, body []byte) error {
	route, params, err := router.FindRoute(req)
	if err != nil {
		return err
	}
	req = req.Clone(context.Background())
	req.Body = io.NopCloser(bytes.NewReader(reqBody))
	in := &openapi3filter.RequestValidationInput{
		Request: req, Route: route, PathParams: params,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true},
	}
	if err := openapi3filter.ValidateRequest(req.Context(), in); err != nil {
		return err
	}
	out := &openapi3filter.ResponseValidationInput{RequestValidationInput: in, Status: status, Header: header, Options: in.Options}
	out.SetBodyBytes(body)
	return openapi3filter.ValidateResponse(req.Context(), out)
}

var (
	chargePoint   = operation("POINT")
	chargeVoucher = operation("VOUCHER")
)

func operation(name string) money.Operation {
	t, _ := promotiontype.ByName(name)
	return t.Operation
}

// Each promotion type's operation is in the file, by itself or as one of chargeOther.
func TestOpenAPIHasTheOperationsOfAllTypes(t *testing.T) {
	t.Parallel()
	doc, router := loadOpenAPI(t)
	require.Equal(t, "chargePoint", doc.Paths.Value(chargePoint.Path).Post.OperationID)
	require.Equal(t, "chargeVoucher", doc.Paths.Value(chargeVoucher.Path).Post.OperationID)
	require.Equal(t, "getCharge", doc.Paths.Value("/v1/charges/{key}").Get.OperationID)
	require.Equal(t, "chargeOther", doc.Paths.Value("/v1/{payouts}/charges").Post.OperationID)
	require.Equal(t, 4, doc.Paths.Len())
	for _, other := range promotiontype.All() {
		body, err := other.Encode(1, 9, 7, other.Sample(1))
		require.NoError(t, err)
		req := httptest.NewRequest(http.MethodPost, other.Operation.Path, bytes.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", other.IdempotencyKey(1, 7))
		answer := http.Header{"Content-Type": {"application/json"}}
		require.NoError(t, check(router, req, body, 200, answer, []byte(`{"transactionKey":"t"}`)))
	}
}

// A proxy between client and simulator checks both against openapi.yaml.
func TestClientAndSimulatorMatchOpenAPI(t *testing.T) {
	t.Parallel()
	_, router := loadOpenAPI(t)
	sim := newSim(t, simulator.Config{})
	seen := map[int]bool{} // requests come one after another
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reqBody, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read request: %v", err)
		}
		out, err := http.NewRequest(r.Method, sim.URL()+r.URL.Path, bytes.NewReader(reqBody))
		if err != nil {
			t.Errorf("make request: %v", err)
			return
		}
		out.Header = r.Header.Clone()
		transport := &http.Transport{DisableKeepAlives: true}
		resp, err := transport.RoundTrip(out)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Errorf("read answer: %v", err)
		}
		if err := check(router, r, reqBody, resp.StatusCode, resp.Header, body); err != nil {
			t.Errorf("%s %s answered %d: %v", r.Method, r.URL, resp.StatusCode, err)
		}
		seen[resp.StatusCode] = true
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		w.Write(body)
	}))
	defer proxy.Close()
	voucher := money.Charge{Operation: chargeVoucher, Key: "VOUCHER:1:2", Body: []byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":2,"voucherId":"V-2026-A"}`)}
	other := charge("POINT:1:2")
	other.Body = bytes.Replace(other.Body, []byte("500"), []byte("501"), 1)

	for _, step := range []struct {
		faults simulator.Faults
		call   func(*money.Client) money.Answer
		want   money.Class
	}{
		{simulator.Faults{}, func(c *money.Client) money.Answer { return c.Lookup(t.Context(), "POINT:1:2") }, money.NoCharge},
		{simulator.Faults{FailRate: 1}, func(c *money.Client) money.Answer { return c.Charge(t.Context(), charge("POINT:1:2")) }, money.Ambiguous},
		{simulator.Faults{ThrottleRate: 1}, func(c *money.Client) money.Answer { return c.Charge(t.Context(), charge("POINT:1:2")) }, money.Throttled},
		{simulator.Faults{RejectRate: 1}, func(c *money.Client) money.Answer { return c.Charge(t.Context(), charge("POINT:1:2")) }, money.Rejected},
		{simulator.Faults{Unauthorized: true}, func(c *money.Client) money.Answer { return c.Charge(t.Context(), charge("POINT:1:2")) }, money.Misconfigured},
		{simulator.Faults{}, func(c *money.Client) money.Answer { return c.Charge(t.Context(), charge("POINT:1:2")) }, money.Paid},
		{simulator.Faults{}, func(c *money.Client) money.Answer { return c.Charge(t.Context(), charge("POINT:1:2")) }, money.Paid},
		{simulator.Faults{}, func(c *money.Client) money.Answer { return c.Charge(t.Context(), other) }, money.Rejected},
		{simulator.Faults{}, func(c *money.Client) money.Answer { return c.Charge(t.Context(), voucher) }, money.Paid},
		{simulator.Faults{}, func(c *money.Client) money.Answer { return c.Lookup(t.Context(), "VOUCHER:1:2") }, money.Paid},
		{simulator.Faults{Unauthorized: true}, func(c *money.Client) money.Answer { return c.Lookup(t.Context(), "POINT:1:2") }, money.Misconfigured},
		{simulator.Faults{ThrottleRate: 1}, func(c *money.Client) money.Answer { return c.Lookup(t.Context(), "POINT:1:2") }, money.Throttled},
		{simulator.Faults{FailRate: 1}, func(c *money.Client) money.Answer { return c.Lookup(t.Context(), "POINT:1:2") }, money.Ambiguous},
	} {
		require.NoError(t, sim.SetFaults(step.faults))
		a := step.call(newClient(t, proxy.URL, nil)) // a new client each time: no open breaker
		require.Equal(t, step.want.String(), a.Class.String(), a.Text)
	}
	for _, status := range []int{200, 401, 404, 422, 429, 500} {
		require.True(t, seen[status], "no answer was %d", status)
	}
}

// The simulator refuses and accepts the same requests as openapi.yaml, with the answers it lists.
func TestSimulatorAcceptsWhatOpenAPIAccepts(t *testing.T) {
	t.Parallel()
	_, router := loadOpenAPI(t)
	sim := newSim(t, simulator.Config{})
	for name, c := range map[string]struct {
		path, key, body string
		valid           bool
	}{
		"point":   {path: chargePoint.Path, key: "POINT:1:1", body: `{"promotionId":1,"promotionSummaryId":1,"targetId":1,"amount":1}`, valid: true},
		"voucher": {path: chargeVoucher.Path, key: "VOUCHER:1:1", body: `{"promotionId":1,"promotionSummaryId":1,"targetId":1,"voucherId":"ü"}`, valid: true},
		"unknown fields are ignored": {path: chargePoint.Path, key: "POINT:1:3",
			body: `{"promotionId":1,"promotionSummaryId":1,"targetId":3,"amount":1,"more":{}}`, valid: true},
		"64 characters": {path: chargeVoucher.Path, key: "VOUCHER:1:4",
			body: `{"promotionId":1,"promotionSummaryId":1,"targetId":1,"voucherId":"` + strings.Repeat("ü", 64) + `"}`, valid: true},
		"65 characters": {path: chargeVoucher.Path, key: "VOUCHER:1:5",
			body: `{"promotionId":1,"promotionSummaryId":1,"targetId":1,"voucherId":"` + strings.Repeat("ü", 65) + `"}`},
		"no key":        {path: chargePoint.Path, key: "", body: `{"promotionId":1,"promotionSummaryId":1,"targetId":1,"amount":1}`},
		"a lower key":   {path: chargePoint.Path, key: "point:1:1", body: `{"promotionId":1,"promotionSummaryId":1,"targetId":1,"amount":1}`},
		"a fraction":    {path: chargePoint.Path, key: "POINT:1:6", body: `{"promotionId":1,"promotionSummaryId":1,"targetId":1,"amount":1.5}`},
		"zero":          {path: chargePoint.Path, key: "POINT:1:6", body: `{"promotionId":1,"promotionSummaryId":1,"targetId":1,"amount":0}`},
		"no amount":     {path: chargePoint.Path, key: "POINT:1:6", body: `{"promotionId":1,"promotionSummaryId":1,"targetId":1}`},
		"a string":      {path: chargePoint.Path, key: "POINT:1:6", body: `{"promotionId":"1","promotionSummaryId":1,"targetId":1,"amount":1}`},
		"no voucher":    {path: chargeVoucher.Path, key: "VOUCHER:1:6", body: `{"promotionId":1,"promotionSummaryId":1,"targetId":1,"voucherId":""}`},
		"an array":      {path: chargePoint.Path, key: "POINT:1:6", body: `[]`},
		"nothing":       {path: chargePoint.Path, key: "POINT:1:6", body: ``},
		"a target of 0": {path: chargePoint.Path, key: "POINT:1:6", body: `{"promotionId":1,"promotionSummaryId":1,"targetId":0,"amount":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(http.MethodPost, sim.URL()+c.path, strings.NewReader(c.body))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")
			if c.key != "" {
				req.Header.Set("Idempotency-Key", c.key)
			}
			transport := &http.Transport{DisableKeepAlives: true}
			resp, err := transport.RoundTrip(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			err = check(router, req, []byte(c.body), resp.StatusCode, resp.Header, body)
			if c.valid {
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, resp.StatusCode)
				return
			}
			require.Error(t, err)
			require.Equal(t, http.StatusBadRequest, resp.StatusCode)
			require.Regexp(t, `^\{"code":"[a-z_]+","message":".+"\}$`, string(body))
		})
	}
}

// The checker must be able to fail.
func TestCheckerFindsWhatBreaksTheContract(t *testing.T) {
	t.Parallel()
	_, router := loadOpenAPI(t)
	const good = `{"promotionId":1,"promotionSummaryId":1,"targetId":1,"amount":1}`
	exchange := func(path, body string, status int, answer string) error {
		req := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "POINT:1:1")
		return check(router, req, []byte(body), status, http.Header{"Content-Type": {"application/json"}}, []byte(answer))
	}
	require.NoError(t, exchange(chargePoint.Path, good, 200, `{"transactionKey":"t"}`))
	require.Error(t, exchange("/v1/points", good, 200, `{"transactionKey":"t"}`))
	require.Error(t, exchange(chargeVoucher.Path, good, 200, `{"transactionKey":"t"}`))
	require.Error(t, exchange(chargePoint.Path, good, 200, `{"key":"t"}`))
	require.Error(t, exchange(chargePoint.Path, good, 422, `{"message":"no code"}`))
	require.Error(t, exchange(chargePoint.Path, good, 302, `{}`))
}
