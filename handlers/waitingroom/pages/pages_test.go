package pages

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func render(t *testing.T, data Room) string {
	t.Helper()
	looks, err := Open(Config{})
	require.NoError(t, err)
	looks.Dress(&data, "")
	return renderAs(t, data)
}

func renderAs(t *testing.T, data Room) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, Waiting().Execute(&out, struct {
		Nonce string
		Data  Room
	}{"n1", data}))
	return out.String()
}

// The content security policy permits nothing else.
func TestThePageLoadsNothingElse(t *testing.T) {
	t.Parallel()
	page := render(t, Room{Event: "42", EntryURL: "https://shop.example/?entry={token}", Grace: 2 * time.Minute})
	require.Len(t, regexp.MustCompile(`<(?:script type="module"|style) nonce="n1">`).FindAllString(page, -1), 2)
	require.Contains(t, page, "export function follow(", "the module is in the page")
	require.NotRegexp(t, `\bimport\b`, page)
	require.NotRegexp(t, `<link|<img|<iframe|@import|url\(| src=| style=| on[a-z]+="`, page)
	require.Contains(t, page, "your turn and its end stay the same")
	require.NotContains(t, page, `target="_blank"`)
	releases := render(t, Room{Releases: true})
	require.Contains(t, releases, "your turn ends when its connection is lost")
	require.Contains(t, releases, `<a id="shop" rel="noreferrer" aria-describedby="said" target="_blank"`, "the page stays connected")
}

func TestThePageNamesEachEnd(t *testing.T) {
	t.Parallel()
	page := render(t, Room{})
	ends := page[strings.Index(page, "const ends"):strings.Index(page, "const refusals")]
	for _, reason := range []string{"sold", "abandoned", "lease_over", "left", "kicked", "room_closed", "grace", "expired", "unknown"} {
		require.Contains(t, ends, "\n  "+reason+": ")
	}
}

// The page shows a refusal without a text as a connection that is lost, and tries again without end.
func TestThePageNamesEachRefusal(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../internal/broker/README.md")
	require.NoError(t, err)
	page := render(t, Room{})
	named := page[strings.Index(page, "const ends"):strings.Index(page, "const ways")]
	words := 0
	for _, row := range regexp.MustCompile(`(?m)^\| (?:400|404|409|410) \| (.*) \|$`).FindAllStringSubmatch(string(readme), -1) {
		refused, _, _ := strings.Cut(row[1], "DELETE `in_shop`") // the page asks for the end of a turn by itself
		for _, word := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(refused, -1) {
			require.Contains(t, named, "\n  "+word[1]+": ")
			words++
		}
	}
	require.Equal(t, 9, words)
}

// A closed room takes nobody, and without a sign-in there is nothing to connect with.
func TestThePageOffersNoWayThatCanNotHelp(t *testing.T) {
	t.Parallel()
	page := render(t, Room{})
	require.NotContains(t, page, "data-sign-in", "no page to sign in at")
	require.Contains(t, page, `const ways = { no_user: signIn, expired: [...signIn, "connect"], room_closed: [], bought: [], bad_user: [] };`)
	require.Regexp(t, `<a id="sign-in" rel="noreferrer" hidden>Sign in</a>`, page)
}

// A promotion has the server's time, and a user who entered again has no turn.
func TestATurnFollowsTheServer(t *testing.T) {
	t.Parallel()
	page := render(t, Room{})
	part := func(from string) string {
		_, rest, found := strings.Cut(page, from)
		require.True(t, found, from)
		text, _, _ := strings.Cut(rest, "\n}")
		return text
	}
	require.Contains(t, part("function promoted("), "clock = p.now - Date.now()")
	connected, _, _ := strings.Cut(part("\n  connected(p, id) {"), "\n  },")
	require.Contains(t, connected, `p.state !== "ADMITTED"`)
	require.Contains(t, connected, `turn = false`)
	require.Contains(t, connected, `at("turn").hidden = true`)
	require.Contains(t, connected, `silence = setTimeout(message, soon, "")`)
}

func TestIdsAndAddressesAreEscaped(t *testing.T) {
	t.Parallel()
	page := render(t, Room{Event: `"><script>alert(1)</script>`, EntryURL: `https://shop.example/?a="&entry={token}`})
	require.NotContains(t, page, "<script>alert")
	require.Equal(t, 1, strings.Count(page, "<script"))
	require.Contains(t, page, `data-entry="https://shop.example/?a=&#34;&amp;entry={token}"`)
}
