package once_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// A publisher whose next version writes its record in another way asks for the same effect, and the request that was stored
// first is sent.
func TestAnUpgradeOfAPublisherIsNoConflict(t *testing.T) {
	t.Parallel()
	const stored, reordered, further, other = `{"customer":"acme","number":"17","cents":1200}`, `{ "number":"\u0031\u0037", "cents":1200, "customer":"acme" }`,
		`{"customer":"acme","number":"17","cents":1200,"currency":"EUR"}`, `{"customer":"acme","number":"17","cents":1201}`
	sameAmount := func(a, b []byte) bool {
		var x, y invoice
		return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && x == y
	}
	for name, c := range map[string]struct {
		same      func(a, b []byte) bool
		conflicts int
	}{
		"without Same":         {nil, 2},
		"with Same":            {sameAmount, 1},
		"with Same that fails": {func([]byte, []byte) bool { panic("an index out of range") }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, w *oncetest.World) {
				p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], c2 *once.KindConfig) {
					k.Same, c2.Topic, c2.Group = c.same, "invoice", "millrace-invoice"
				})
				w.Start(p)
				w.Topics.Feed("invoice").SendPayloads(stored, reordered, further, other, `{"customer":"zeta","number":"1"}`)
				require.Equal(t, map[string]int{"effect_conflict": c.conflicts}, deadOf(t, w, "invoice-dead", c.conflicts))
				require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, once.Key{Group: "zeta", ID: "1"}).State)
				require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
				require.Equal(t, 1, p.far.Executed(one.idempotency()))
				require.Len(t, w.Topics.Published("invoice-dead").Messages(), c.conflicts)
			})
		})
	}
}

func TestSameJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":[1,2]}`, ` { "b" : [ 1 , 2 ] , "a" : 1 } `, true},
		{`{"a":{"c":"é","b":null}}`, `{"a":{"b":null,"c":"\u00e9"}}`, true},
		{`1`, `1`, true},
		{`{"a":1}`, `{"a":1.0}`, false},
		{`{"a":9007199254740993}`, `{"a":9007199254740992}`, false},
		{`{"a":1}`, `{"a":"1"}`, false},
		{`{"a":[1,2]}`, `{"a":[2,1]}`, false},
		{`{"a":1}`, `{"a":1,"b":null}`, false},
		{`{"a":1,"a":1}`, `{"a":1,"a":1}`, false},
		{`{"a":1,"a":2}`, `{"a":2}`, false},
		{`{"a":"\ud800"}`, `{"a":"\ud800"}`, false},
		{`{"a":1} {"a":1}`, `{"a":1}`, false},
		{``, ``, false},
		{`a=1`, `a=1`, false},
	} {
		require.Equal(t, c.same, once.SameJSON([]byte(c.a), []byte(c.b)), "%s and %s", c.a, c.b)
		require.Equal(t, c.same, once.SameJSON([]byte(c.b), []byte(c.a)), "%s and %s", c.b, c.a)
	}
}

// What is the same is also equal for encoding/json, with the numbers as they are written.
func FuzzSameJSON(f *testing.F) {
	f.Add(`{"a":1,"b":[1,{"c":"x"}]}`, `{"b":[1,{"c":"\u0078"}],"a":1}`)
	f.Add(`{"a":1}`, `{"a":1.0}`)
	f.Add(`{"a":1,"a":2}`, `{"a":2}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		if !once.SameJSON([]byte(a), []byte(b)) {
			return
		}
		value := func(text string) (v any) {
			d := json.NewDecoder(bytes.NewReader([]byte(text)))
			d.UseNumber()
			require.NoError(t, d.Decode(&v))
			return v
		}
		require.True(t, reflect.DeepEqual(value(a), value(b)), "%s and %s", a, b)
	})
}
