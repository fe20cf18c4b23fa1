package entry

import (
	"slices"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
)

// DecodeFields is Decode for streams whose entries are flat fields. An entry without the field
// "message" becomes a message with the entry's id. Its payload is a JSON object of all fields, in
// the order of their names, with strings as values.
//
// A byte that is not UTF-8 becomes the escape of a lone surrogate: \udcff is the byte 0xff. Go
// decodes it as U+FFFD. Valid text never contains it, so the payload determines the original bytes.
func DecodeFields(m goredis.XMessage) (*message.Message, error) {
	_, ours := m.Values[fieldMessage]
	_, foreign := m.Values[watermillUUID]
	if ours || foreign {
		return Decode(m)
	}
	return message.NewMessage(m.ID, object(m.Values)), nil
}

func object(fields map[string]any) []byte {
	var few [16]string // no allocation for the usual entry
	names, size := few[:0], 2
	for name := range fields {
		value, _ := stringField(fields, name)
		names = append(names, name)
		size += len(name) + len(value) + len(`"":"",`)
	}
	slices.Sort(names)
	b := append(make([]byte, 0, size+size/8), '{') // quotes in JSON values need escapes
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		value, _ := stringField(fields, name)
		b = appendString(append(appendString(b, name), ':'), value)
	}
	return append(b, '}')
}

func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	begin := 0 // of what is copied unchanged
	for i := 0; i < len(s); {
		c, size := s[i], 1
		if c >= utf8.RuneSelf {
			_, size = utf8.DecodeRuneInString(s[i:])
		}
		if size > 1 || c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i += size
			continue
		}
		b = append(b, s[begin:i]...)
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			b = append(b, '\\', 'u', 'd', 'c', hex[c>>4], hex[c&15])
		}
		i++
		begin = i
	}
	return append(append(b, s[begin:]...), '"')
}
