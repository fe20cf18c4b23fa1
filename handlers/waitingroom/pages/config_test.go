package pages

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hostile is a text that must be shown as it is.
const hostile = `</script><script>alert(1)</script><img src=x onerror=alert(1)>"\'{{.}}`

// translated has a text of another language for each of the page.
func translated() map[string]string {
	texts := Texts()
	for key, text := range texts {
		texts[key] = "ko:" + text
	}
	return texts
}

// Each text that a shop can change is shown somewhere, and the page has no other one.
func TestThePageShowsEachText(t *testing.T) {
	t.Parallel()
	var used []string
	for _, match := range regexp.MustCompile(`(?:\.Data\.Text\.|\btexts\.|\bfill\(")([a-z_]+)`).FindAllStringSubmatch(roomPage, -1) {
		used = append(used, match[1])
	}
	slices.Sort(used)
	require.Equal(t, slices.Sorted(maps.Keys(Texts())), slices.Compact(used))
	head, script, _ := strings.Cut(roomPage, "<script")
	_, body, _ := strings.Cut(head, "<body")
	plain := regexp.MustCompile(`\{\{[^}]*\}\}|<[^>]*>`).ReplaceAllString("<body"+body, " ")
	require.NotRegexp(t, `[A-Za-z]{3,}`, regexp.MustCompile(`/events/|/tickets/waiting/status`).ReplaceAllString(plain, ""), "a text that no shop can translate")
	script = regexp.MustCompile(`(?m)//.*$`).ReplaceAllString(script, "")
	require.NotRegexp(t, `"[A-Z][a-z]+ [a-z]+ [^"]*"`, script, "a text that no shop can translate")
}

func TestAShopDressesItsPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	logo := filepath.Join(dir, "logo.svg")
	require.NoError(t, os.WriteFile(logo, []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`), 0o600))
	c := Config{
		Look: Look{Name: "Tickets & Co", Logo: logo, SignIn: "/sign-in?next={page}", Texts: map[string]string{"next": "You are at the front."}},
		Events: map[string]Event{
			"42": {Title: "The <Concert>", Look: Look{Logo: "https://cdn.shop.example:8443/a.png?b=1"}},
			"43": {Title: "공연", Look: Look{SignIn: "https://43.example", Name: "티켓", Language: "ko", Texts: translated()}},
			"44": {Look: Look{Language: "ar", Texts: translated()}},
			"45": {Look: Look{Language: "en"}}, // that of the shop
		},
	}
	require.NoError(t, c.Validate())
	looks, err := Open(c)
	require.NoError(t, err)
	dressed := func(event string) (string, []string) {
		room := Room{Event: event}
		images := looks.Dress(&room, "")
		return renderAs(t, room), images
	}
	page, images := dressed("7")
	require.Empty(t, images)
	require.Contains(t, page, `<img id="logo" src="7/logo" alt="Tickets &amp; Co">`)
	require.Contains(t, page, ` data-sign-in="/sign-in?next={page}"`)
	require.Contains(t, page, `<small>Tickets &amp; Co · Waiting room</small> 7</h1>`)
	require.Contains(t, page, `"next":"You are at the front."`)
	require.Contains(t, page, `"in_queue":"You are in the queue."`)
	shown, found := looks.Logo("7")
	require.True(t, found)
	require.Equal(t, "image/svg+xml", shown.Type)

	page, _ = dressed("45")
	require.Contains(t, page, `"next":"You are at the front."`)

	page, images = dressed("42")
	require.Equal(t, []string{"https://cdn.shop.example:8443"}, images)
	require.Contains(t, page, `<title>Waiting room · The &lt;Concert&gt;</title>`)
	require.Contains(t, page, `"next":"You are at the front."`, "the text of all events")
	_, found = looks.Logo("42")
	require.False(t, found)

	page, _ = dressed("43")
	require.Contains(t, page, `<html lang="ko" dir="ltr">`)
	require.Contains(t, page, ` data-sign-in="https://43.example"`)
	require.Contains(t, page, `<small>티켓 · ko:Waiting room</small> 공연</h1>`)
	require.Contains(t, page, `"next":"ko:You are next."`)
	page, _ = dressed("44")
	require.Contains(t, page, `<html lang="ar" dir="rtl">`)
}

func TestHostileTextsAreText(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	for key, text := range Texts() {
		texts[key] = hostile + strings.Join(placeholder.FindAllString(text, -1), "")
	}
	c := Config{Look: Look{Name: hostile, Logo: `https://shop.example/"onerror="alert(1)`, Texts: texts}, Events: map[string]Event{"1": {Title: hostile}}}
	require.NoError(t, c.Validate())
	looks, err := Open(c)
	require.NoError(t, err)
	room := Room{Event: "1"}
	looks.Dress(&room, "")
	page := renderAs(t, room)
	require.Equal(t, 1, strings.Count(page, "<script"))
	require.Equal(t, 1, strings.Count(page, "</script"))
	require.Equal(t, 1, strings.Count(page, "<img"))
	require.NotRegexp(t, `<[^>]*"\s*onerror=`, page)
}

func TestMistakesInTheLookOfAPage(t *testing.T) {
	t.Parallel()
	with := func(key, text string) Config { return Config{Look: Look{Texts: map[string]string{key: text}}} }
	for want, c := range map[string]Config{
		"name: must have at most 100 characters":                                       {Look: Look{Name: strings.Repeat("x", 101)}},
		"name: must have printable characters only":                                    {Look: Look{Name: "a\u202eb"}},
		"events.42.title: must have printable":                                         {Events: map[string]Event{"42": {Title: "a\nb"}}},
		"logo: must be a file or an address":                                           {Look: Look{Logo: "http://shop.example/logo.png"}},
		`logo: must be a file or an address such`:                                      {Look: Look{Logo: "https://shop.example;script-src/x"}},
		"events.42.logo: must be a file":                                               {Events: map[string]Event{"42": {Look: Look{Logo: "https://a:b@shop.example/x"}}}},
		`language: must be the tag of a language, such as ko or pt-BR, got "en-USA"`:   {Look: Look{Language: "en-USA"}}, // which ends a script
		"language: must be the tag of a language":                                      {Look: Look{Language: `en" onload="x`}},
		"sign_in: must be an address such as https://shop.example/sign-in?next={page}": {Look: Look{SignIn: "javascript:alert(1)"}},
		"sign_in: must be an address":                                                  {Look: Look{SignIn: "//shop.example/x"}},
		"events.42.sign_in: must be an address":                                        {Events: map[string]Event{"42": {Look: Look{SignIn: "http://a:b@shop.example"}}}},
		"texts.nxt: the page has no such text":                                         with("nxt", "x"),
		"texts.next: must have at most 400 characters":                                 with("next", strings.Repeat("x", 401)),
		"texts.next: must have printable characters only":                              with("next", "a\x00"),
		"texts.next: must not be empty":                                                with("next", " "),
		"texts.ahead: must have these places for values":                               with("ahead", "many"),
		"texts.next: must have these places for values and no oth":                     with("next", "{time}"),
		"texts: must have each text in the language de":                                {Look: Look{Language: "de", Texts: map[string]string{"next": "x"}}},
		"events.42.texts: must have each text in the language de":                      {Look: Look{Texts: Texts()}, Events: map[string]Event{"42": {Look: Look{Language: "de"}}}},
	} {
		require.ErrorContains(t, c.Validate(), want)
	}
	require.NoError(t, Config{}.Validate())
	for _, address := range []string{"https://shop.example/sign-in?next={page}", "http://127.0.0.1:8080/sign-in", "/sign-in?next={page}"} {
		require.NoError(t, Config{Look: Look{SignIn: address}}.Validate(), address)
	}
	require.NoError(t, Config{Look: Look{Language: "en-GB"}}.Validate())
	require.NoError(t, with("next", "\u0645\u06cc\u200c\u0634\u0648\u062f").Validate(), "a Persian word with a joiner")
}

func TestALogoIsASmallImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, tc := range map[string]struct{ content, want string }{
		"page.svg":  {"<html><script>alert(1)</script>", "must be an image"},
		"large.png": {"\x89PNG\r\n\x1a\n" + strings.Repeat("x", maxLogoBytes), "every user loads it"},
		"good.png":  {"\x89PNG\r\n\x1a\n", ""},
	} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(tc.content), 0o600))
		_, err := Open(Config{Events: map[string]Event{"42": {Look: Look{Logo: file}}}})
		if tc.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, tc.want, name)
	}
	_, err := Open(Config{Look: Look{Logo: filepath.Join(dir, "absent.png")}})
	require.ErrorContains(t, err, "absent.png")
}
