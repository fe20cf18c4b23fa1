package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"sync"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// till is a plugin with actions and with a page that leads to one of them.
type till struct {
	counting chan struct{} // its close ends the action count
	began    chan struct{} // of count

	mu      sync.Mutex
	refunds []refund
	opened  int
}

// refund is one that was done.
type refund struct {
	in  operate.Input
	use operate.Use
}

func newTill() *till {
	return &till{counting: make(chan struct{}), began: make(chan struct{}, 100)}
}

func (*till) Name() string                          { return "till" }
func (x *till) Register(r *pipeline.Registry) error { r.Offer(x); return nil }

func (x *till) Console() []pages.Page {
	return []pages.Page{{Path: "orders", Title: "Orders", Panels: []pages.Panel{
		{Name: "order", Title: "Order", Actions: []string{"till refund", "till absent"}, Load: func(context.Context, pages.Query) (pages.Block, error) {
			return pages.Text("one order"), nil
		}},
	}}}
}

func (x *till) done() []refund {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.refunds
}

// Operations implements operate.Operated.
func (x *till) Operations() operate.Operations {
	about := func(name, short string, fields ...operate.Field) operate.About {
		return operate.About{Name: name, Short: short, Examples: []string{name + " --order 7"}, Fields: fields}
	}
	would := func(_ context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
		if in.Text("order") == "unpaid" {
			return operate.Answer{}, errors.New("the order was not paid")
		}
		text := "would refund the order " + in.Text("order")
		return operate.Answer{Value: map[string]string{"would": text}, Lines: []string{text}, Notes: []string{"--item refunds less; --else is no field."}}, nil
	}
	nothing := func(context.Context, *pipeline.Registry, operate.Input) (operate.Answer, error) {
		return operate.Answer{Value: "nothing"}, nil
	}
	refundAbout := about("till refund", "Refund an order",
		operate.Field{Name: "order", Required: true, Help: "the `number` of the order"}, operate.Field{Name: "amount", Type: operate.Number, Default: "5"},
		operate.Field{Name: "item", Type: operate.List}, operate.Field{Name: "express", Type: operate.Switch, Help: "without --amount (millrace till refund --order 7)"})
	refundAbout.Validate = func(in operate.Input) error {
		if in.Number("amount") < 0 {
			return app.Usage("--amount must be >= 0, got %d", in.Number("amount"))
		}
		return nil
	}
	return operate.Operations{Actions: []operate.Action{
		{
			About: refundAbout, Danger: operate.Irreversible, Role: operate.Operator, Audited: true, Preview: would,
			Do: func(_ context.Context, _ *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
				x.mu.Lock()
				defer x.mu.Unlock()
				x.refunds = append(x.refunds, refund{in, use})
				return operate.Answer{Value: map[string]any{"refunded": in.Text("order")}, Lines: []string{"refunded " + in.Text("order")}}, nil
			},
		},
		{
			About: about("till open", "Open the till"), Danger: operate.Safe, Role: operate.Admin, Preview: nothing,
			Do: func(context.Context, *pipeline.Registry, operate.Input, operate.Use) (operate.Answer, error) {
				x.mu.Lock()
				defer x.mu.Unlock()
				x.opened++
				return operate.Answer{Value: map[string]any{"opened": x.opened}, Checks: []operate.Check{{Name: "till", Level: operate.Fail, Text: "is jammed"}}}, nil
			},
		},
		{
			About: about("till count", "Count the money"), Danger: operate.Safe, Role: operate.Operator, Preview: nothing,
			Do: func(ctx context.Context, _ *pipeline.Registry, _ operate.Input, use operate.Use) (operate.Answer, error) {
				use.Report(3, 10)
				use.Tell("The coins come <last>.")
				x.began <- struct{}{}
				select {
				case <-x.counting:
					return operate.Answer{Value: map[string]int{"counted": 10}, Lines: []string{"counted 10"}}, nil
				case <-ctx.Done():
					return operate.Answer{Value: map[string]int{"counted": 3}, Lines: []string{"counted 3"}}, ctx.Err()
				}
			},
		},
	}}
}

// post sends a form of the page at the path, and returns the answer.
func (r *rig) post(path string, values url.Values, headers ...string) (answered, string) {
	r.t.Helper()
	return r.do(http.MethodPost, path, values.Encode(), headers...)
}

// send sends JSON to the API, and returns the status and the answer.
func (r *rig) send(path, body string, headers ...string) (status int, answer map[string]any) {
	r.t.Helper()
	got, text := r.do(http.MethodPost, "/api/v1/actions/"+path, body, append([]string{"Content-Type: application/json"}, headers...)...)
	require.NoError(r.t, json.Unmarshal([]byte(text), &answer), text)
	return got.StatusCode, answer
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// previewed sends the fields of a form, and returns those of the form that confirms them.
func (r *rig) previewed(path string, fields url.Values, headers ...string) (url.Values, string) {
	r.t.Helper()
	fields.Set("step", "preview")
	answer, text := r.post(path, fields, headers...)
	require.Equal(r.t, http.StatusOK, answer.StatusCode, text)
	confirm := url.Values{"step": {"do"}}
	for _, m := range hidden.FindAllStringSubmatch(text, -1) {
		confirm.Add(html.UnescapeString(m[1]), html.UnescapeString(m[2]))
	}
	require.NotEmpty(r.t, confirm.Get("use"), text)
	return confirm, text
}

func signed(name string) string {
	request, _ := http.NewRequest(http.MethodGet, "/", http.NoBody)
	request.SetBasicAuth(name, "open")
	return "Authorization: " + request.Header.Get("Authorization")
}
