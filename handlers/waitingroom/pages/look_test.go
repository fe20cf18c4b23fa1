package pages

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// dressed returns the page of an event for a browser.
func dressed(t *testing.T, c Config, event, accepted string) string {
	t.Helper()
	require.NoError(t, c.Validate())
	looks, err := Open(c)
	require.NoError(t, err)
	data := Room{Event: event}
	looks.Dress(&data, accepted)
	return renderAs(t, data)
}

// Each sentence is Korean as a whole, and has the values of the English one.
func TestTheKoreanTextsAreWhole(t *testing.T) {
	t.Parallel()
	texts := korean()
	require.Equal(t, slices.Sorted(maps.Keys(Texts())), slices.Sorted(maps.Keys(texts)))
	names := func(s string) []string {
		list := placeholder.FindAllString(s, -1)
		slices.Sort(list)
		return list
	}
	for key, text := range texts {
		require.Equal(t, names(Texts()[key]), names(text), key)
		rest := placeholder.ReplaceAllString(text, "")
		require.NotRegexp(t, `[A-Za-z]`, rest, key)
		if key != "range" { // it has values alone
			require.Regexp(t, `\p{Hangul}`, rest, key)
		}
		require.NotEqual(t, Texts()[key], text, key)
	}
}

// The browser decides about the language, unless the shop has.
func TestTheLanguageOfThePage(t *testing.T) {
	t.Parallel()
	for accepted, want := range map[string]string{
		"": "en", "ko": "ko", "ko-KR,ko;q=0.9,en-US;q=0.8,en;q=0.7": "ko", "en-US,en;q=0.9,ko;q=0.8": "en", "de-DE,de;q=0.9,ko;q=0.5,en;q=0.3": "ko",
		"de,fr;q=0.9": "en", "*": "en", "KO": "ko", "ko;q=0": "en", "ko;q=0,en;q=0": "en", "ko;q=nan": "en", "ko;q=2": "en", "ko;q=x": "en", "en;q=0.5, ko ; q=0.6": "ko",
		`ko"><script>`: "en", ";;,,q=": "en", "korean": "en", strings.Repeat("ko,", 10_000): "ko",
	} {
		page := dressed(t, Config{}, "42", accepted)
		require.Contains(t, page, `<html lang="`+want+`" dir="ltr">`, "%.80q", accepted)
		require.Equal(t, want == "ko", strings.Contains(page, "내 대기 번호"), "%.80q", accepted)
		require.Equal(t, want == "en", strings.Contains(page, "Your position"), "a page has one language")
	}
	fixed := dressed(t, Config{Look: Look{Language: "ko-KR", Texts: map[string]string{"next": "곧 입장합니다."}}}, "42", "en")
	require.Contains(t, fixed, `<html lang="ko-KR" dir="ltr">`)
	require.Contains(t, fixed, `"next":"곧 입장합니다."`)
	require.Contains(t, fixed, `"in_queue":"대기 중입니다."`, "Korean needs no text of the shop")
	own := dressed(t, Config{Look: Look{Texts: map[string]string{"next": "You are at the front."}}}, "42", "ko")
	require.Contains(t, own, `<html lang="en"`, "the texts of the shop are English")
	require.NotRegexp(t, `\p{Hangul}`, own)
	event := dressed(t, Config{Look: Look{Texts: map[string]string{"next": "You are at the front."}}, Events: map[string]Event{"42": {Look: Look{Language: "ko"}}}}, "42", "en")
	require.Contains(t, event, `"next":"다음 차례입니다."`, "no English text on a Korean page")
	english := dressed(t, Config{Events: map[string]Event{"42": {Look: Look{Language: "en"}}}}, "42", "ko")
	require.Contains(t, english, `<html lang="en"`, "the event has decided")
}

// The colors of a shop are used as they are, with a text on them that everybody can read.
func TestTheColorsOfAShop(t *testing.T) {
	t.Parallel()
	with := func(accent, dark string) string {
		return dressed(t, Config{Look: Look{Colors: Colors{accent, dark}}}, "42", "")
	}
	require.Contains(t, with("", ""), "--accent: #0b57d0; --on-accent: #ffffff;")
	require.Contains(t, with("", ""), "--accent: #8ab4f8; --on-accent: #000000;")
	page := with("#7A0019", "#FFCC33")
	require.Contains(t, page, "--accent: #7A0019; --on-accent: #ffffff;")
	require.Contains(t, page, "--accent: #FFCC33; --on-accent: #000000;")
	page = with("#e8590c", "")
	require.Equal(t, 2, strings.Count(page, "--accent: #e8590c; --on-accent: #000000;"), "it can be seen in both")
	event := Config{Look: Look{Colors: Colors{"#7A0019", "#FFCC33"}}, Events: map[string]Event{"7": {Look: Look{Colors: Colors{Accent: "#e8590c"}}}}}
	require.Contains(t, dressed(t, event, "7", ""), "--accent: #e8590c;")
	require.NotContains(t, dressed(t, event, "7", ""), "#7A0019")
	require.InDelta(t, 21, contrast("#000000", "#ffffff"), 0.001)
	require.InDelta(t, 4.54, contrast("#767676", "#ffffff"), 0.01)

	// What no validation has seen is filtered by the template.
	data := Room{Event: "42"}
	data.Light.Color = "red}</style><script>alert(1)</script>"
	filtered := renderAs(t, data)
	require.Equal(t, 1, strings.Count(filtered, "<script"))
	require.Equal(t, 1, strings.Count(filtered, "</style"))
}

// Links open beside the page, which keeps its connection, and are plain text and addresses.
func TestTheLinksOfAShop(t *testing.T) {
	t.Parallel()
	require.NotContains(t, dressed(t, Config{}, "42", ""), "<footer")
	c := Config{
		Look:   Look{Links: []Link{{"Imprint", "https://shop.example/imprint?a=1&b=2"}, {hostile, "/privacy"}, {"Help", "../help#queue"}}},
		Events: map[string]Event{"7": {Look: Look{Links: []Link{{"Terms of 7", "/terms/7"}}}}},
	}
	page := dressed(t, c, "42", "")
	require.Contains(t, page, `<a href="https://shop.example/imprint?a=1&amp;b=2" target="_blank" rel="noopener noreferrer">Imprint</a>`)
	require.Contains(t, page, `<a href="/privacy" target="_blank" rel="noopener noreferrer">&lt;/script&gt;&lt;script&gt;alert(1)`)
	require.Contains(t, page, `<a href="../help#queue"`)
	require.Equal(t, 1, strings.Count(page, "<script"))
	require.Zero(t, strings.Count(page, "<img"))
	event := dressed(t, c, "7", "")
	require.Contains(t, event, "Terms of 7")
	require.NotContains(t, event, "Imprint")
}

func TestMistakesInColorsAndLinks(t *testing.T) {
	t.Parallel()
	color := func(accent, dark string) Config { return Config{Look: Look{Colors: Colors{accent, dark}}} }
	link := func(address string) Config {
		return Config{Look: Look{Links: []Link{{"Imprint", "/ok"}, {"Imprint", address}}}}
	}
	for want, c := range map[string]Config{
		`colors.accent: must be a color such as #0b57d0, got "red"`: color("red", ""),
		`colors.accent: must be a color`:                            color("#fff}body{display:none", ""),
		`colors.accent_dark: must be a color`:                       color("", "url(https://evil.example/x)"),
		"colors.accent: must have a contrast of at least 3 to the light page, so that everybody sees the button to the shop; #ffff00 has 1.1": color("#ffff00", ""),
		"colors.accent_dark: must have a contrast of at least 3 to the dark page":                                                             color("", "#000080"),
		"colors.accent_dark: must be set, because #000080 has a contrast of":                                                                  color("#000080", ""),
		"events.42.colors.accent: must be a color":                                                                                            {Events: map[string]Event{"42": {Look: Look{Colors: Colors{Accent: "#fff"}}}}},
		`links[1].url: must be an address such as https`:                                                                                      link("javascript:alert(1)"),
		`got "JavaScript:alert(1)"`:                                                                                                           link("JavaScript:alert(1)"),
		`got "http://shop.example/"`:                                                                                                          link("http://shop.example/"),
		`got "//evil.example/"`:                                                                                                               link("//evil.example/"),
		`got "/\\evil.example/"`:                                                                                                              link(`/\evil.example/`),
		`got "https:evil"`:                                                                                                                    link("https:evil"),
		`got "https://a:b@shop.example/"`:                                                                                                     link("https://a:b@shop.example/"),
		`got "data:text/html,x"`:                                                                                                              link("data:text/html,x"),
		`got ""`:                                                                                                                              link(""),
		`links[1].url: must have printable characters only`:                                                                                   link("/a\u202eb"),
		"links[0].text: must not be empty":                                                                                                    {Look: Look{Links: []Link{{" ", "/x"}}}},
		"links[0].text: must have at most 100":                                                                                                {Look: Look{Links: []Link{{strings.Repeat("x", 101), "/x"}}}},
		"links: must have at most 10 links, got 11":                                                                                           {Look: Look{Links: slices.Repeat([]Link{{"a", "/x"}}, 11)}},
		"links[1].url: must have at most 500":                                                                                                 link("/" + strings.Repeat("x", 500)),
		"texts: must have each text in the language de, beca":                                                                                 {Look: Look{Language: "de"}},
	} {
		require.ErrorContains(t, c.Validate(), want)
	}
	require.NoError(t, color("#e8590c", "").Validate())
	require.NoError(t, link("https://shop.example:8443/imprint").Validate())
	require.NotRegexp(t, `\p{Hangul}`, strings.Join(slices.Collect(maps.Values(Texts())), ""))
}
