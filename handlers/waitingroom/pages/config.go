package pages

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is what a shop changes in its pages.
type Config struct {
	Look   `yaml:",inline"`
	Events map[string]Event `yaml:"events"` // by the id of the event
}

// Event is what the page of one event has instead.
type Event struct {
	Look `yaml:",inline"`
	// Title is the name of the event. Empty: its id.
	Title string `yaml:"title"`
}

// Look is the face of a page. An empty field of an event has the value of all events.
type Look struct {
	// Name is that of the shop. Empty: the page says that it is a waiting room.
	Name string `yaml:"name"`
	// Logo is a file, or an https address. Empty: none.
	Logo string `yaml:"logo"`
	// Language is the tag of the texts (BCP 47). Empty: English or Korean, as the browser of the user asks, and
	// English with Texts.
	Language string `yaml:"language"`
	// Texts replace those of the page, by key. Those of another language than English and Korean have to be
	// complete.
	Texts map[string]string `yaml:"texts"`
	// Colors are checked for their contrast.
	Colors Colors `yaml:"colors"`
	// Links are legal and other ones, below the page.
	Links []Link `yaml:"links"`
	// SignIn is the address of the page where users sign in; {page} is replaced by that of the waiting room.
	// Empty: the page asks users to sign in, and has no way there.
	SignIn string `yaml:"sign_in"`
}

const (
	maxName      = 100 // characters
	maxText      = 400
	maxLogoBytes = 256 << 10
)

var (
	// language, script and region; a tag of another form ends the script of the page
	languageTag = regexp.MustCompile(`^[A-Za-z]{2,3}(-[A-Za-z]{4})?(-([A-Za-z]{2}|[0-9]{3}))?$`)
	placeholder = regexp.MustCompile(`\{[a-z]+\}`)
	hostOfLogo  = regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]{1,5})?$`)
)

// Validate reports all errors at once. It reads no file.
func (c Config) Validate() error {
	var p setting.Problems
	c.validate(&p, "")
	for _, id := range slices.Sorted(maps.Keys(c.Events)) {
		e, at := c.Events[id], "events."+id+"."
		checkText(&p, at+"title", e.Title, maxName)
		c.of(id).Look.validate(&p, at)
	}
	return p.Err()
}

// of returns the look of an event. Texts of another language are not taken over.
func (c Config) of(id string) Event {
	e, whole := c.Events[id], c.Look
	if e.Name != "" {
		whole.Name = e.Name
	}
	if e.Logo != "" {
		whole.Logo = e.Logo
	}
	if e.Colors != (Colors{}) {
		whole.Colors = e.Colors
	}
	if len(e.Links) > 0 {
		whole.Links = e.Links
	}
	if e.SignIn != "" {
		whole.SignIn = e.SignIn
	}
	if e.Language != "" {
		if !strings.EqualFold(e.Language, cmp.Or(whole.Language, "en")) {
			whole.Texts = nil
		}
		whole.Language = e.Language
	}
	texts := maps.Clone(whole.Texts)
	if texts == nil {
		texts = map[string]string{}
	}
	maps.Copy(texts, e.Texts)
	whole.Texts = texts
	return Event{whole, e.Title}
}

func (l Look) validate(p *setting.Problems, at string) {
	checkText(p, at+"name", l.Name, maxName)
	p.Check(l.Language == "" || languageTag.MatchString(l.Language), at+"language", "must be the tag of a language, such as ko or pt-BR, got %q", l.Language)
	if strings.Contains(l.Logo, "://") {
		u, err := url.Parse(l.Logo)
		p.Check(err == nil && u.Scheme == "https" && u.User == nil && hostOfLogo.MatchString(u.Host), at+"logo",
			"must be a file or an address such as https://shop.example/logo.svg, because the page is allowed to load images of that origin alone; got %q", l.Logo)
	}
	for _, key := range slices.Sorted(maps.Keys(l.Texts)) {
		path := at + "texts." + key
		want, known := Texts()[key]
		if !known {
			p.Check(false, path, "the page has no such text; it has %s", strings.Join(slices.Sorted(maps.Keys(Texts())), ", "))
			continue
		}
		text := l.Texts[key]
		p.Check(strings.TrimSpace(text) != "", path, "must not be empty: leave it out for the text of the page")
		checkText(p, path, text, maxText)
		names := func(s string) []string {
			list := placeholder.FindAllString(s, -1)
			slices.Sort(list)
			return slices.Compact(list)
		}
		p.Check(slices.Equal(names(want), names(text)), path, "must have these places for values and no others: [%s], as in %q; got [%s]",
			strings.Join(names(want), " "), want, strings.Join(names(text), " "))
	}
	l.Colors.validate(p, at+"colors.")
	validateLinks(p, at+"links", l.Links)
	checkText(p, at+"sign_in", l.SignIn, maxAddress)
	secure := l.SignIn
	if rest, plain := strings.CutPrefix(secure, "http://"); plain {
		secure = "https://" + rest
	}
	p.Check(secure == "" || safeAddress(secure), at+"sign_in",
		"must be an address such as https://shop.example/sign-in?next={page}, or /sign-in on the server of the page, got %q", l.SignIn)
	if _, has := builtIn(l.Language); has {
		return
	}
	var missing []string
	for _, key := range slices.Sorted(maps.Keys(Texts())) {
		if l.Texts[key] == "" {
			missing = append(missing, key)
		}
	}
	p.Check(len(missing) == 0, at+"texts", "must have each text in the language %s, because a page of two languages is read out wrongly; missing: %s",
		l.Language, strings.Join(missing, ", "))
}

func checkText(p *setting.Problems, path, text string, limit int) {
	p.Check(utf8.ValidString(text) && utf8.RuneCountInString(text) <= limit, path, "must have at most %d characters", limit)
	// Persian, Hindi and emoji need the joiners, which Unicode counts as formats.
	hidden := func(c rune) bool { return !unicode.IsPrint(c) && c != '\u200c' && c != '\u200d' }
	p.Check(!strings.ContainsFunc(text, hidden), path, "must have printable characters only, got %q", text)
}

// Logo is an image that the server of the page answers with.
type Logo struct {
	Type string // of the content
	Data []byte
}

// readLogo reads the file of a logo.
func readLogo(file string) (Logo, error) {
	info, err := os.Stat(file)
	if err != nil {
		return Logo{}, fmt.Errorf("logo: %w", err)
	}
	if info.Size() > maxLogoBytes {
		return Logo{}, fmt.Errorf("logo: %s has %d bytes, and may have %d: every user loads it, so make it smaller", file, info.Size(), maxLogoBytes)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return Logo{}, fmt.Errorf("logo: %w", err)
	}
	kind := http.DetectContentType(data)
	if strings.EqualFold(filepath.Ext(file), ".svg") && bytes.Contains(data, []byte("<svg")) {
		kind = "image/svg+xml"
	}
	if !slices.Contains([]string{"image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml"}, kind) {
		return Logo{}, fmt.Errorf("logo: %s must be an image (PNG, JPEG, GIF, WebP or SVG), and is %s", file, kind)
	}
	return Logo{kind, data}, nil
}

// Looks are the faces of all pages, with their logos. Build it with Open.
type Looks struct {
	config Config
	logos  map[string]Logo // by file
}

// Open reads the logos that are files.
func Open(c Config) (*Looks, error) {
	l := &Looks{c, map[string]Logo{}}
	all := []string{c.Logo}
	for _, e := range c.Events {
		all = append(all, e.Logo)
	}
	for _, file := range all {
		if file == "" || strings.Contains(file, "://") {
			continue
		}
		logo, err := readLogo(file)
		if err != nil {
			return nil, err
		}
		l.logos[file] = logo
	}
	return l, nil
}

// Logo returns the logo of an event that is a file.
func (l *Looks) Logo(event string) (Logo, bool) {
	logo, found := l.logos[l.config.of(event).Logo]
	return logo, found
}

// Dress sets what the page of an event looks like, and returns the origins of its images. accepted is the header
// Accept-Language of the user, which decides about the language where the shop does not.
func (l *Looks) Dress(r *Room, accepted string) (images []string) {
	e := l.config.of(r.Event)
	r.Shop, r.Title, r.Language, r.Links, r.SignIn = e.Name, e.Title, e.Language, e.Links, e.SignIn
	r.Light, r.Dark = e.Colors.pairs()
	if r.Title == "" {
		r.Title = r.Event
	}
	switch {
	case r.Language != "":
	case len(e.Texts) > 0: // they are English, and a page has one language
		r.Language = "en"
	default:
		r.Language = preferred(accepted)
	}
	r.Text = Texts() // another language has each of them
	if texts, has := builtIn(r.Language); has {
		r.Text = texts
	}
	maps.Copy(r.Text, e.Texts)
	switch {
	case e.Logo == "":
	case strings.Contains(e.Logo, "://"):
		r.Logo = e.Logo
		if u, err := url.Parse(e.Logo); err == nil { // Validate has parsed it
			images = append(images, "https://"+u.Host)
		}
	default:
		r.Logo = r.Event + "/logo" // of the server, below the page
	}
	return images
}
