package store

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// headerBytes is a header in the stored JSON object whose value is not UTF-8.
type headerBytes struct {
	Base64 []byte `json:"base64"`
}

// base64Name is the prefix of a stored name that is not UTF-8.
const base64Name = "base64:"

func encodeHeaders(headers map[string]string) string {
	out := make(map[string]any, len(headers))
	for k, v := range headers {
		if !utf8.ValidString(k) || strings.HasPrefix(k, base64Name) {
			k = base64Name + base64.StdEncoding.EncodeToString([]byte(k))
		}
		if utf8.ValidString(v) {
			out[k] = v
		} else {
			out[k] = headerBytes{[]byte(v)}
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(out) // strings always encode
	return strings.TrimSuffix(b.String(), "\n")
}

func decodeHeaders(text string) (map[string]string, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	headers := make(map[string]string, len(raw))
	for k, v := range raw {
		if code, ok := strings.CutPrefix(k, base64Name); ok {
			name, err := base64.StdEncoding.DecodeString(code)
			if err != nil {
				return nil, fmt.Errorf("header %q: %w", k, err)
			}
			k = string(name)
		}
		var plain string
		if json.Unmarshal(v, &plain) == nil {
			headers[k] = plain
			continue
		}
		var coded headerBytes
		if err := json.Unmarshal(v, &coded); err != nil {
			return nil, fmt.Errorf("header %q: %w", k, err)
		}
		headers[k] = string(coded.Base64)
	}
	return headers, nil
}
