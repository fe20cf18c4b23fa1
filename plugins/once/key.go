package once

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxKey is the length of the longest Group, ID and Part of a Key in bytes.
const MaxKey = 100

// ErrKey is wrapped by the errors of Key.Validate and ParseKey. A caller that meets it must not repeat the
// same call, because the key stays wrong.
var ErrKey = errors.New("once: not a key")

// Key names an effect within its kind. Group and ID are 1 to 100 bytes of valid UTF-8 without control
// characters, and are compared byte by byte. A Key must be a pure function of the value: a kind that derives
// another key from the same record does its effect a second time.
type Key struct {
	Group string // pause, cancel, fairness and totals work per group
	ID    string // unique in the group
	Part  string // a subtotal within the group; no part of the identity; may be empty
}

// String returns group:id. A colon, a percent sign, a brace, a line break and every other byte that is not
// graphic ASCII are percent-encoded, so keys that differ in Group or ID never have the same text. Part is
// not in it.
func (k Key) String() string { return encode(k.Group) + ":" + encode(k.ID) }

// ParseKey returns the key with this text, without its Part. It accepts only what String returns for a valid
// key. Any other text, such as one with %61 instead of an a, is an error that wraps ErrKey, because two texts
// of one key would be two effects at the far side.
func ParseKey(text string) (Key, error) {
	group, id, ok := strings.Cut(text, ":")
	if !ok {
		return Key{}, fmt.Errorf("%w: %q has no colon: want group:id", ErrKey, shorten(text))
	}
	k := Key{Group: decode(group), ID: decode(id)}
	if k.String() != text {
		return Key{}, fmt.Errorf("%w: %q is not in the form group:id with one colon, in which every other colon, "+
			"percent sign, brace and byte that is not graphic ASCII is written as %%XX", ErrKey, shorten(text))
	}
	if err := k.Validate(); err != nil {
		return Key{}, err
	}
	return k, nil
}

// Validate returns an error that wraps ErrKey and names all parts that are wrong.
func (k Key) Validate() error {
	var wrong []string
	for _, part := range []struct {
		name, text string
		least      int
	}{{"group", k.Group, 1}, {"id", k.ID, 1}, {"part", k.Part, 0}} {
		switch {
		case len(part.text) < part.least || len(part.text) > MaxKey:
			wrong = append(wrong, fmt.Sprintf("%s %q has %d bytes: want %d to %d", part.name, shorten(part.text), len(part.text), part.least, MaxKey))
		case !utf8.ValidString(part.text):
			wrong = append(wrong, fmt.Sprintf("%s %q is not UTF-8", part.name, part.text))
		case strings.ContainsFunc(part.text, unicode.IsControl):
			wrong = append(wrong, fmt.Sprintf("%s %q has a control character", part.name, part.text))
		}
	}
	if wrong == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrKey, strings.Join(wrong, "; "))
}

// UUID returns a function from a key to its UUID, for a far side that wants UUIDs as idempotency keys. The
// UUID has version 8 and comes from SHA-256 over kind and key, so it is the same in every process, and two
// kinds have different UUIDs for the same key. Part does not change it.
func UUID(kind string) func(Key) string {
	return func(k Key) string {
		// The last two colons belong to the key and its kind, so no two pairs have the same text.
		sum := sha256.Sum256([]byte(kind + ":" + k.String()))
		sum[6] = sum[6]&0x0f | 0x80 // version 8
		sum[8] = sum[8]&0x3f | 0x80 // the variant of RFC 9562
		t := hex.EncodeToString(sum[:16])
		return t[:8] + "-" + t[8:12] + "-" + t[12:16] + "-" + t[16:20] + "-" + t[20:]
	}
}

const hexDigits = "0123456789ABCDEF"

// plain reports whether c stands for itself in the text of a key. Braces would be a hash tag in the name of
// a Redis stream.
func plain(c byte) bool {
	return c > ' ' && c < 0x7f && c != ':' && c != '%' && c != '{' && c != '}'
}

func encode(part string) string {
	escapes := 0
	for i := range len(part) {
		if !plain(part[i]) {
			escapes++
		}
	}
	if escapes == 0 {
		return part
	}
	text := make([]byte, 0, len(part)+2*escapes)
	for i := range len(part) {
		if c := part[i]; plain(c) {
			text = append(text, c)
		} else {
			text = append(text, '%', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return string(text)
}

// decode replaces each %XX with its byte and keeps everything else. ParseKey encodes the result again, and
// so notices a text that encode never returns.
func decode(text string) string {
	if !strings.Contains(text, "%") {
		return text
	}
	part := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			high, low := strings.IndexByte(hexDigits, text[i+1]), strings.IndexByte(hexDigits, text[i+2])
			if high >= 0 && low >= 0 {
				part = append(part, byte(high<<4|low))
				i += 2
				continue
			}
		}
		part = append(part, text[i])
	}
	return string(part)
}

// shorten bounds a text in an error, since it may be anything.
func shorten(text string) string {
	if len(text) <= 2*MaxKey {
		return text
	}
	return text[:2*MaxKey] + "…"
}
