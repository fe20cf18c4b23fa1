package simulator_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg simulator.Config) *simulator.Server {
	t.Helper()
	s, err := simulator.New(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(t, s.Stop(ctx))
	})
	return s
}

// do returns the status and the body of an answer.
func do(s *simulator.Server, method, path, key, body string) (int, string) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	s.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

const (
	point   = `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"amount":5}`
	voucher = `{"promotionId":1,"promotionSummaryId":9,"targetId":7,"voucherId":"V"}`
)

func TestTheWordsOfTheMoneyAPI(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	status, charged := do(s, http.MethodPost, "/v1/points/charges", "POINT:1:7", point)
	require.Equal(t, 200, status)
	require.Regexp(t, `^{"transactionKey":"[0-9a-f]+-1","idempotencyKey":"POINT:1:7"}$`, charged)
	_, found := do(s, http.MethodGet, "/v1/charges/POINT:1:7", "", "")
	require.Equal(t, charged, found)
	for _, c := range []struct {
		method, path, key, body string
		status                  int
		code                    string
	}{
		{http.MethodGet, "/v1/charges/POINT:1:8", "", "", 404, "charge_not_found"},
		{http.MethodGet, "/v1/charges/POINT:1", "", "", 400, "bad_idempotency_key"},
		{http.MethodGet, "/v1/points/charges", "POINT:1:7", "", 404, "no_such_operation"},
		{http.MethodPost, "/v1/points/charges", "point:1:7", point, 400, "bad_idempotency_key"},
		{http.MethodPost, "/v1/points/charges", "POINT:1:8", voucher, 400, "bad_request"},
		{http.MethodPost, "/v1/points/charges", "POINT:1:7", strings.Replace(point, "5", "6", 1), 422, "key_reused"},
	} {
		status, body := do(s, c.method, c.path, c.key, c.body)
		require.Equal(t, c.status, status, c)
		require.Contains(t, body, `{"code":"`+c.code+`"`, c)
	}
	require.NoError(t, s.SetFaults(simulator.Faults{RejectRate: 1}))
	_, body := do(s, http.MethodPost, "/v1/points/charges", "POINT:1:8", point)
	require.Contains(t, body, "limit_exceeded")

	require.NoError(t, s.SetFaults(simulator.Faults{PoisonRate: 1}))
	codes := map[string]bool{}
	code := regexp.MustCompile(`"code":"([a-z_]+)"`)
	for n := range 100 {
		_, body := do(s, http.MethodPost, "/v1/points/charges", fmt.Sprintf("POINT:2:%d", n+1), point)
		if found := code.FindStringSubmatch(body); found != nil {
			codes[found[1]] = true
		}
	}
	require.Equal(t, map[string]bool{"member_not_found": true, "member_blocked": true, "forbidden": true, "throttled": true, "internal": true}, codes)
}

func TestThePatternOfKeys(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	for key, valid := range map[string]bool{
		"POINT:1:2": true, "A_9:10:9223372036854775807": true, "P:1:" + strings.Repeat("9", 124): true, "P:1:" + strings.Repeat("9", 125): false,
		"POINT": false, "POINT:1": false, "POINT:1:": false, ":1:2": false, "POINT:0:2": false, "POINT:1:02": false, "point:1:2": false,
		"POINT:1:2:3": false, "9P:1:2": false, "_P:1:2": false, "POINT:-1:2": false, "POINT::2": false,
	} {
		status, _ := do(s, http.MethodGet, "/v1/charges/"+key, "", "")
		require.Equal(t, valid, status == 404, "%s: %d", key, status)
	}
}

func TestTheJournalByTypeAndPromotion(t *testing.T) {
	t.Parallel()
	s := start(t, simulator.Config{})
	for _, c := range [][3]string{
		{"/v1/points/charges", "POINT:1:7", point}, {"/v1/vouchers/charges", "VOUCHER:1:7", voucher},
		{"/v1/points/charges", "POINT:12:7", strings.Replace(point, "1", "12", 1)},
		{"/v1/points/charges", "POINT:1:99", point}, // another key for the same target
	} {
		status, body := do(s, http.MethodPost, c[0], c[1], c[2])
		require.Equal(t, 200, status, body)
	}
	sum := s.Summary()
	require.Equal(t, []int{4, 0, 1, 1}, []int{sum.Executed, sum.DoubleKeys, sum.DoubleSubjects, sum.Doubled})
	require.EqualValues(t, 15, sum.Sum, "a voucher is no amount")

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, c := range []struct {
		q    simulator.Query
		want []string
	}{
		{simulator.Query{Limit: 1}, []string{"POINT:12:7", "POINT:1:7", "POINT:1:99", "VOUCHER:1:7"}},
		{simulator.Query{Type: "POINT", PromotionID: 1}, []string{"POINT:1:7", "POINT:1:99"}},
		{simulator.Query{Type: "point", PromotionID: 12}, []string{"POINT:12:7"}},
		{simulator.Query{PromotionID: 1, After: "POINT:1:8"}, []string{"POINT:1:99", "VOUCHER:1:7"}},
		{simulator.Query{Type: "VOUCHER"}, []string{"VOUCHER:1:7"}},
	} {
		var read []simulator.Entry
		for e, err := range simulator.ReadJournal(t.Context(), client, s.URL(), c.q) {
			require.NoError(t, err)
			read = append(read, e)
		}
		keys := []string{}
		for _, e := range read {
			keys = append(keys, e.Key)
		}
		require.ElementsMatch(t, c.want, keys)
		if c.q.Limit == 0 {
			p, err := s.Page(c.q)
			require.NoError(t, err)
			require.Equal(t, read, p.Entries)
		}
	}
	p, err := s.Page(simulator.Query{Type: "VOUCHER"})
	require.NoError(t, err)
	e := p.Entries[0]
	require.Equal(t, []any{"VOUCHER", int64(1), int64(9), int64(7), "V"}, []any{e.Type, e.PromotionID, e.PromotionSummaryID, e.TargetID, e.Value})

	for _, bad := range []string{"type=CASH", "promotion=x", "promotion=-1"} {
		status, _ := do(s, http.MethodGet, "/_sim/journal?"+bad, "", "")
		require.Equal(t, 400, status, bad)
	}
	_, err = s.Page(simulator.Query{Type: "CASH"})
	require.ErrorContains(t, err, "type must be one of")
	_, book := do(s, http.MethodGet, "/_sim/journal?format=book&type=voucher", "", "")
	require.Regexp(t, `^key,receipt,times,sum\nVOUCHER:1:7,[^,]+,1,0\n$`, book)
}

func TestTheCommand(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	cmd := simulator.Command()
	require.Equal(t, "money-simulator", cmd.Name())
	cmd.SetArgs([]string{"--listen", "127.0.0.1:0", "--key-ttl", "1h"})
	cmd.SetOut(w)
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(cmd.ExecuteContext(ctx), w.Close()) }()
	first := make([]byte, 20)
	_, err := io.ReadFull(r, first)
	require.NoError(t, err)
	require.Equal(t, "money api listening ", string(first))
	cancel()
	_, err = io.Copy(io.Discard, r)
	require.NoError(t, err)
	require.NoError(t, <-ended)
}

func TestWrongSettings(t *testing.T) {
	t.Parallel()
	s, err := simulator.New(simulator.Config{Faults: simulator.Faults{FailRate: 2}})
	require.ErrorContains(t, err, "fail_rate")
	require.Nil(t, s)
}
