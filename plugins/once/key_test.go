package once_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
)

func TestTheTextOfAKey(t *testing.T) {
	t.Parallel()
	for want, k := range map[string]once.Key{
		"acme:17":                      {Group: "acme", ID: "17"},
		"acme:18":                      {Group: "acme", ID: "18", Part: "a part is not in it"},
		"a%3Ab:c":                      {Group: "a:b", ID: "c"},
		"a:b%3Ac":                      {Group: "a", ID: "b:c"},
		"100%25:%253A":                 {Group: "100%", ID: "%3A"},
		"x%7B1%7Dy:1":                  {Group: "x{1}y", ID: "1"},
		"a%20b:%0A":                    {Group: "a b", ID: "\n"},
		"K%C3%B6ln:%E2%82%AC":          {Group: "Köln", ID: "€"},
		"a/b?c#d&e=f:~!\"'<>|\\^`[]()": {Group: "a/b?c#d&e=f", ID: "~!\"'<>|\\^`[]()"},
	} {
		require.Equal(t, want, k.String())
	}
}

func TestAKeyOfItsText(t *testing.T) {
	t.Parallel()
	k, err := once.ParseKey("a%3Ab:K%C3%B6ln")
	require.NoError(t, err)
	require.Equal(t, once.Key{Group: "a:b", ID: "Köln"}, k)
	for _, text := range []string{
		"", ":", "a:", ":b", "a", "a:b:c", "a b:c", "Köln:1",
		"%61:b",     // an a has one text
		"a%3ab:c",   // capitals only
		"a%:b",      // half an escape
		"a%3:b",     //
		"a:b%GG",    //
		"a:b%0A",    // a control character
		"a:b%C3",    // not UTF-8
		"a:b%C2%85", // a control character outside of ASCII
		"{a}:b", "a\n:b", "a:" + strings.Repeat("b", 101), strings.Repeat("%C3%B6", 51) + ":b", strings.Repeat("x", 10_000),
	} {
		_, err := once.ParseKey(text)
		require.ErrorIs(t, err, once.ErrKey, "%q", text)
		require.Less(t, len(err.Error()), 1000)
	}
}

func TestAWrongKeyNamesItsParts(t *testing.T) {
	t.Parallel()
	require.NoError(t, once.Key{Group: strings.Repeat("g", 100), ID: strings.Repeat("ö", 50), Part: "p"}.Validate())
	require.NoError(t, once.Key{Group: "g", ID: "i"}.Validate())
	err := once.Key{ID: "a\tb", Part: "\xff"}.Validate()
	require.ErrorIs(t, err, once.ErrKey)
	require.EqualError(t, err, `once: not a key: group "" has 0 bytes: want 1 to 100; id "a\tb" has a control character; part "\xff" is not UTF-8`)
	require.ErrorContains(t, once.Key{Group: "g", ID: "i", Part: strings.Repeat("p", 101)}.Validate(), "part")
}

// keyOf returns the key of what a fuzzer found, and whether it should be valid.
func keyOf(group, id string) (once.Key, bool) {
	k := once.Key{Group: group, ID: id}
	ok := func(part string) bool {
		return part != "" && len(part) <= 100 && utf8.ValidString(part) && strings.IndexFunc(part, unicode.IsControl) < 0
	}
	return k, ok(group) && ok(id)
}

// Every valid key comes back from its text, which is graphic ASCII, has one colon and no brace.
func FuzzKeyRoundTrip(f *testing.F) {
	for _, seed := range [][2]string{{"acme", "17"}, {"a:b", "c"}, {"%3A", "%"}, {"{x}", "a b"}, {"Köln", "\u2028"}, {"", "x"}, {"a\n", "b"}, {"\xff", "b"}} {
		f.Add(seed[0], seed[1])
	}
	form := regexp.MustCompile(`^[!-~]+$`)
	f.Fuzz(func(t *testing.T, group, id string) {
		k, valid := keyOf(group, id)
		require.Equal(t, valid, k.Validate() == nil, "%q", k)
		text := k.String()
		got, err := once.ParseKey(text)
		if !valid {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, k, got)
		require.Regexp(t, form, text)
		require.Equal(t, 1, strings.Count(text, ":"))
		require.False(t, strings.ContainsAny(text, "{}"))
	})
}

// A text is the text of at most one key, so two keys never share one.
func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{"a:b", "a%3Ab:c", "a%3ab:c", "%:%", "a:b:c", "%41:b", "%C3%B6:x", "{a}:b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		k, err := once.ParseKey(text)
		if err != nil {
			require.ErrorIs(t, err, once.ErrKey)
			require.Zero(t, k)
			return
		}
		require.NoError(t, k.Validate())
		require.Equal(t, text, k.String())
	})
}

func TestUUIDsOfKeys(t *testing.T) {
	t.Parallel()
	k := once.Key{Group: "acme", ID: "17"}
	invoice := once.UUID("invoice")
	// Stored at the far side: it must be the same in every version. It is that of `printf invoice:acme:17 | sha256sum`.
	require.Equal(t, "ec41cfec-ae0d-8868-ac0a-d5eb0529d92b", invoice(k))
	require.Equal(t, invoice(k), invoice(once.Key{Group: "acme", ID: "17", Part: "x"}))
	seen := map[string]bool{}
	for _, kind := range []string{"invoice", "invoice:acme", "mail"} {
		for _, k := range []once.Key{k, {Group: "17", ID: "acme"}, {Group: "acme:17", ID: "17"}, {Group: "acme", ID: "17:17"}, {Group: "acme17", ID: "17"}} {
			u := once.UUID(kind)(k)
			require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, u)
			require.False(t, seen[u], "%s %v", kind, k)
			seen[u] = true
		}
	}
}
