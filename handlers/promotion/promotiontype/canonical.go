package promotiontype

import "bytes"

// decodeCanonical decodes a payload that is byte for byte its own request: the fields of the type in
// their order, without white space, escapes or further fields. Producers that use Encode write these
// payloads, and the service reads each of them twice. It reports false for every other payload, also
// for a wrong one, which Decode then decodes or refuses. The request of the result is payload itself.
func (t Type) decodeCanonical(payload []byte) (p Payout, ok bool) {
	if t.canonical == nil || len(t.fields) != 1 || len(payload) > MaxPayloadBytes {
		return Payout{}, false
	}
	rest := payload
	for i, id := range []*int64{&p.Promotion, &p.Summary, &p.Target} {
		begin := byte(',')
		if i == 0 {
			begin = '{'
		}
		if rest, ok = canonicalName(rest, begin, envelopeFields[i].name); !ok {
			return Payout{}, false
		}
		if *id, rest, ok = canonicalNumber(rest); !ok {
			return Payout{}, false
		}
	}
	if rest, ok = canonicalName(rest, ',', t.fields[0].name); !ok {
		return Payout{}, false
	}
	value, end, ok := t.canonical(rest)
	if !ok || len(end) != 1 || end[0] != '}' {
		return Payout{}, false
	}
	p.Value, p.Request = string(value), payload
	return p, true
}

// canonicalName reads the byte begin, the name and the colon.
func canonicalName(text []byte, begin byte, name string) (rest []byte, ok bool) {
	n := len(name)
	if len(text) < n+4 || text[0] != begin || text[1] != '"' || string(text[2:2+n]) != name || text[2+n] != '"' || text[3+n] != ':' {
		return nil, false
	}
	return text[n+4:], true
}

// maxCanonicalDigits is the number of digits of which each number is less than 2^63.
const maxCanonicalDigits = 18

// canonicalNumber reads a whole number from 1 to 10^18 - 1.
func canonicalNumber(text []byte) (n int64, rest []byte, ok bool) {
	i := 0
	for i < len(text) && i <= maxCanonicalDigits && text[i] >= '0' && text[i] <= '9' {
		n = n*10 + int64(text[i]-'0')
		i++
	}
	if i == 0 || i > maxCanonicalDigits || text[0] == '0' {
		return 0, nil, false
	}
	return n, text[i:], true
}

// canonicalAmount reads a number and returns its text.
func canonicalAmount(text []byte) (value, rest []byte, ok bool) {
	_, rest, ok = canonicalNumber(text)
	return text[:len(text)-len(rest)], rest, ok
}

// canonicalText reads a string of 1 to 64 printable ASCII characters that JSON never escapes.
func canonicalText(text []byte) (value, rest []byte, ok bool) {
	if len(text) == 0 || text[0] != '"' {
		return nil, nil, false
	}
	n := bytes.IndexByte(text[1:], '"')
	if n < 1 || n > 64 {
		return nil, nil, false
	}
	for _, c := range text[1 : 1+n] {
		if c < ' ' || c > '~' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return nil, nil, false
		}
	}
	return text[1 : 1+n], text[n+2:], true
}
