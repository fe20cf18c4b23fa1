package console

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// A command has what differs from the defaults, for a shell, with its arguments last and without secrets.
func TestTheCommandOfAForm(t *testing.T) {
	t.Parallel()
	a := action{Action: operate.Action{Audited: true, About: operate.About{Name: "mill grind", Fields: []operate.Field{
		{Name: "grain", Type: operate.List, Arguments: true}, {Name: "speed", Type: operate.Number, Default: "5"}, {Name: "dry", Type: operate.Switch},
		{Name: "safe", Type: operate.Switch, Default: "true"}, {Name: "sack", Type: operate.List}, {Name: "note"}, {Name: "token"}, {Name: "kind", Required: true},
	}}}}
	s := &server{masks: newMasks([]string{"token"})}
	for want, in := range map[string]operate.Input{
		"":                                   {"speed": {"7"}},
		"mill grind --kind rye --why REASON": {"kind": {"rye"}},
		"mill grind --kind rye --why REASON 'a b' '$HOME'":               {"kind": {"rye"}, "grain": {"a b", "$HOME"}},
		"mill grind --kind rye --why REASON -- -x":                       {"kind": {"rye"}, "grain": {"-x"}},
		`mill grind --dry --safe=false --kind 'it'\''s' --why REASON`:    {"kind": {"it's"}, "dry": {"true"}, "safe": {"false"}},
		`mill grind --sack '"a,b"' --sack c --kind rye --why REASON`:     {"kind": {"rye"}, "sack": {"a,b", "c"}},
		"mill grind --speed 7 --token '[masked]' --kind x --why REASON":  {"kind": {"x"}, "speed": {"7"}, "token": {"hunter2"}},
		`mill grind --note '{"token":"[masked]"}' --kind x --why REASON`: {"kind": {"x"}, "note": {`{"token":"hunter2"}`}},
		"mill grind --note 'of /a?token=[masked]' --kind x --why REASON": {"kind": {"x"}, "note": {"of /a?token=hunter2"}},
		"mill grind --note '`rm x`; \"y\" & z' --kind x --why REASON":    {"kind": {"x"}, "note": {"`rm x`; \"y\" & z"}},
	} {
		require.Equal(t, want, s.commandOf(a, a.Complete(in), whyWords(a, "")...))
	}
	require.Equal(t, []string{"--why", "'ticket 7'"}, whyWords(a, "ticket 7"))
	require.Empty(t, whyWords(action{}, ""))
}
