package pages

import (
	"fmt"
	"math"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// Link is a legal or other link below the page.
type Link struct {
	Text string `yaml:"text"`
	// URL is an https address, or one relative to that of the page.
	URL string `yaml:"url"`
}

// Colors are those of the button to the shop, of borders and of the progress.
type Colors struct {
	// Accent is the color in light surroundings, such as #0b57d0. Empty: that of the page.
	Accent string `yaml:"accent"`
	// AccentDark is the color in dark surroundings. Empty: Accent, or that of the page without one.
	AccentDark string `yaml:"accent_dark"`
}

const (
	maxLinks    = 10
	maxAddress  = 500
	leastToSee  = 3.0 // contrast of what is no text (WCAG 2.2, 1.4.11)
	accent      = "#0b57d0"
	accentDark  = "#8ab4f8"
	lightGround = "#ffffff"
	darkGround  = "#262b33" // the lightest one behind the color
)

var colorPattern = regexp.MustCompile(`^#[0-9A-Fa-f]{6}$`)

func (c Colors) validate(p *setting.Problems, at string) {
	for _, one := range []struct{ key, color, ground, where string }{
		{"accent", c.Accent, lightGround, "light"}, {"accent_dark", c.AccentDark, darkGround, "dark"},
	} {
		if one.color == "" {
			continue
		}
		if !colorPattern.MatchString(one.color) {
			p.Check(false, at+one.key, "must be a color such as %s, got %q", accent, one.color)
			continue
		}
		found := contrast(one.color, one.ground)
		p.Check(found >= leastToSee, at+one.key, "must have a contrast of at least 3 to the %s page, so that everybody sees the button to the shop; %s has %.1f", one.where, one.color, found)
	}
	if c.AccentDark == "" && colorPattern.MatchString(c.Accent) {
		p.Check(contrast(c.Accent, darkGround) >= leastToSee, at+"accent_dark", "must be set, because %s has a contrast of %.1f to a dark page, and needs 3", c.Accent, contrast(c.Accent, darkGround))
	}
}

// pair is a color and that of a text on it.
type pair struct{ Color, Text string }

// pairs returns those in light and in dark surroundings.
func (c Colors) pairs() (light, dark pair) {
	with := func(color string) pair {
		if contrast(color, "#ffffff") >= contrast(color, "#000000") {
			return pair{color, "#ffffff"}
		}
		return pair{color, "#000000"}
	}
	light, dark = with(accent), with(accentDark)
	if c.Accent != "" {
		light, dark = with(c.Accent), with(c.Accent)
	}
	if c.AccentDark != "" {
		dark = with(c.AccentDark)
	}
	return light, dark
}

// contrast returns the ratio of the luminances of two colors, from 1 to 21 (WCAG 2.2).
func contrast(a, b string) float64 {
	luminance := func(color string) float64 {
		sum := 0.0
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
			n, _ := strconv.ParseUint(color[1+2*i:3+2*i], 16, 8) // the pattern was checked
			part := float64(n) / 255
			if part <= 0.04045 {
				sum += weight * part / 12.92
			} else {
				sum += weight * math.Pow((part+0.055)/1.055, 2.4)
			}
		}
		return sum
	}
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func validateLinks(p *setting.Problems, at string, links []Link) {
	p.Check(len(links) <= maxLinks, at, "must have at most %d links, got %d", maxLinks, len(links))
	for i, l := range links {
		path := fmt.Sprintf("%s[%d].", at, i)
		p.Check(strings.TrimSpace(l.Text) != "", path+"text", "must not be empty: it is what a person reads of the link")
		checkText(p, path+"text", l.Text, maxName)
		checkText(p, path+"url", l.URL, maxAddress)
		p.Check(safeAddress(l.URL), path+"url", "must be an address such as https://shop.example/imprint, or /imprint on the server of the page, got %q", l.URL)
	}
}

// safeAddress reports whether an address is https, or relative to the page on its own server.
func safeAddress(address string) bool {
	u, err := url.Parse(address)
	switch {
	case err != nil || address == "" || strings.ContainsAny(address, "\\ "): // browsers read \ as /
		return false
	case u.Scheme == "https":
		return u.User == nil && u.Opaque == "" && hostOfLogo.MatchString(u.Host)
	}
	return u.Scheme == "" && u.Host == "" && u.Opaque == "" && !strings.HasPrefix(address, "//")
}

// builtIn returns the texts of a language that the page has by itself.
func builtIn(language string) (map[string]string, bool) {
	base, _, _ := strings.Cut(strings.ToLower(language), "-")
	switch base {
	case "", "en":
		return Texts(), true
	case "ko":
		return korean(), true
	}
	return nil, false
}

// preferred returns the language of the page that a header Accept-Language prefers. Without one that the page
// has, it is English.
func preferred(header string) string {
	best, bestWeight := "en", 0.0
	for part := range strings.SplitSeq(header, ",") {
		tag, parameters, _ := strings.Cut(strings.TrimSpace(part), ";")
		weight := 1.0
		if q, is := strings.CutPrefix(strings.ReplaceAll(parameters, " ", ""), "q="); is {
			n, err := strconv.ParseFloat(q, 64)
			if err != nil || !(n >= 0 && n <= 1) {
				continue
			}
			weight = n
		}
		base, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(tag)), "-")
		if _, has := builtIn(base); has && base != "" && weight > bestWeight {
			best, bestWeight = base, weight
		}
	}
	return best
}
