package effects_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// withKeys is a settings file whose idempotency keys have a form.
func withKeys(form string) string {
	return strings.Replace(overHTTP, "idempotency_header: Request-Id", "idempotency_header: Request-Id\n          idempotency_key: "+form, 1)
}

// An API may want another idempotency key than the name of the effect.
func TestTheFormOfTheIdempotencyKey(t *testing.T) {
	t.Parallel()
	const id = "0190b3b4-7a6e-7c1e-8f00-2f6b8d1c9a11"
	for form, want := range map[string]string{
		"full": "invoice:acme:" + id,
		"uuid": once.UUID("invoice")(once.Key{Group: "acme", ID: id}),
		"id":   id,
	} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			dsn, api := sqldbtest.File(t), newFar(t, true)
			api.next("POST /billing/v1/invoices", reply{execute: true, drop: true})
			w := newWorld(t, dsn)
			w.start(t, withKeys(form), dsn, api)
			const payload = `{"invoice":{"customer":"acme","number":"` + id + `"}}`
			w.send(t, "invoices", payload)
			require.Equal(t, rules.Success, w.settled(t, "invoice", payload).State)
			calls := api.requests(http.MethodPost, "/billing/v1/invoices")
			require.Len(t, calls, 2)
			require.Equal(t, []string{want, want}, []string{calls[0].key, calls[1].key})
			require.Equal(t, 1, api.executed(want))
		})
	}
}

// An id that can't be sent as it is names no effect.
func TestAnIDThatIsNoIdempotencyKeyIsADeadLetter(t *testing.T) {
	t.Parallel()
	dsn, api := sqldbtest.File(t), newFar(t, true)
	w := newWorld(t, dsn)
	w.start(t, withKeys("id"), dsn, api)
	w.send(t, "invoices", `{"invoice":{"customer":"acme","number":"a b"}}`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dead, err := w.Topics.Published("invoices-dead").Wait(ctx, 1)
	require.NoError(t, err)
	require.Contains(t, dead[0].Metadata.Get(pipeline.MetaDeadError),
		"key: invoice.number is the idempotency key, because request.idempotency_key is id: the idempotency key can't be sent: it must be printable ASCII without spaces")
}

// A group of a customer whose name is not ASCII makes a long idempotency key, which would be refused at each call.
func TestAKeyThatIsTooLongIsADeadLetter(t *testing.T) {
	t.Parallel()
	dsn, api := sqldbtest.File(t), newFar(t, true)
	w := newWorld(t, dsn)
	w.start(t, overHTTP, dsn, api)
	w.send(t, "invoices", `{"invoice":{"customer":"`+strings.Repeat("株", 30)+`","number":"17"}}`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dead, err := w.Topics.Published("invoices-dead").Wait(ctx, 1)
	require.NoError(t, err)
	require.Contains(t, dead[0].Metadata.Get(pipeline.MetaDeadError), "it must have 1 to 255 characters, got 281: set request.idempotency_key to uuid")
}

// An id that means another path, or is a part of the path, names no effect either: it would be called for without end.
func TestAnIDThatDoesNotFitThePathIsADeadLetter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ settings, number, want string }{
		"a dot segment":      {strings.Replace(overHTTP, "path: /v1/invoices", "path: /v1/invoices/{id}", 1), "..", `request.path: {id} in the path is "..", which can't be an element of it`},
		"a part of the path": {withKeys("id"), "/v1", "request.path: the path has the idempotency key in it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, api := sqldbtest.File(t), newFar(t, true)
			w := newWorld(t, dsn)
			w.start(t, c.settings, dsn, api)
			w.send(t, "invoices", `{"invoice":{"customer":"acme","number":"`+c.number+`"}}`)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			dead, err := w.Topics.Published("invoices-dead").Wait(ctx, 1)
			require.NoError(t, err)
			require.Contains(t, dead[0].Metadata.Get(pipeline.MetaDeadError), c.want)
		})
	}
}

// Numbers that no float64 has stay as they are written, from the record to the receipt.
func TestLargeNumbersStayExact(t *testing.T) {
	t.Parallel()
	dsn, api := sqldbtest.File(t), newFar(t, true)
	api.next("POST /billing/v1/invoices", reply{execute: true, status: http.StatusCreated, body: `{"invoice":{"id":9007199254740995}}`})
	w := newWorld(t, dsn)
	w.start(t, overHTTP, dsn, api)
	const payload = `{"invoice":{"customer":18446744073709551617,"number":9007199254740993,"cents":9007199254740997}}`
	a := w.post(t, "invoice", shopToken, `{"key":9007199254740993,"group":18446744073709551617,"payload":`+payload+`}`)
	require.Equal(t, http.StatusAccepted, a.status, a)
	require.Equal(t, []string{"18446744073709551617", "9007199254740993"}, []string{a.Group, a.Key})
	require.Equal(t, "9007199254740995", w.settled(t, "invoice", payload).Receipt)
	calls := api.requests(http.MethodPost, "/billing/v1/invoices")
	require.Equal(t, "invoice:18446744073709551617:9007199254740993", calls[0].key)
	require.Equal(t, 1, strings.Count(`{"customer":18446744073709551617,"number":9007199254740993,"cents":9007199254740997}`, calls[0].body), calls[0].body)
	a = w.post(t, "invoice", shopToken, `{"key":9007199254740992,"payload":`+payload+`}`)
	require.Equal(t, "other_key", a.Error, "the next number is another key")
}

func TestAnUnknownFormOfTheIdempotencyKey(t *testing.T) {
	t.Parallel()
	code, printed := newWorld(t, sqldbtest.File(t)).validate(t, `plugins:
  effects:
    kinds:
      invoice: {repeat: never, key: id, group: to, request: {path: /x, idempotency_key: guid}, answers: {receipt: id}, api: {url: "http://127.0.0.1"}}
`)
	require.Equal(t, app.ExitUsage, code)
	require.Contains(t, printed, `mill.yaml:4: plugins.effects.kinds.invoice.request.idempotency_key: must be full, uuid or id, because an API may want a certain form, got "guid"`)
}
