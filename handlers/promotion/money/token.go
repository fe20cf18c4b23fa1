package money

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// maxTokenBytes bounds a token file.
const maxTokenBytes = 64 << 10

// credential is one bearer token, ready to be sent. It is immutable.
type credential struct {
	token  string
	header http.Header // of every request that uses it
}

func newCredential(token string) *credential {
	c := &credential{token: token, header: http.Header{"Accept": {"application/json"}}}
	if token != "" {
		c.header["Authorization"] = []string{"Bearer " + token}
	}
	return c
}

// tokens has the current credential. It is safe for concurrent use.
type tokens struct {
	file    string
	current atomic.Pointer[credential]
	mu      sync.Mutex // around reading the file
}

func newTokens(cfg *Config) (*tokens, error) {
	t := &tokens{file: cfg.TokenFile}
	value := cfg.Token.Reveal()
	if t.file != "" {
		var err error
		if value, err = readToken(t.file); err != nil {
			return nil, err
		}
	}
	t.current.Store(newCredential(value))
	return t, nil
}

// renew is called when used was refused. It reports whether there is another credential: one that
// another call has read since, or a new one in the file. An error means that the file can't be
// read; the old credential stays.
func (t *tokens) renew(used *credential) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current.Load() != used {
		return true, nil
	}
	if t.file == "" {
		return false, nil
	}
	value, err := readToken(t.file)
	if err != nil || value == used.token {
		return false, err
	}
	t.current.Store(newCredential(value))
	return true, nil
}

func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("money: token file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	if err != nil {
		return "", fmt.Errorf("money: token file: %w", err)
	}
	token := strings.TrimRight(string(b), "\r\n")
	switch {
	case token == "":
		return "", fmt.Errorf("money: token file %s is empty", path)
	case len(b) > maxTokenBytes:
		return "", fmt.Errorf("money: token file %s is larger than %d bytes", path, maxTokenBytes)
	case strings.ContainsAny(token, "\r\n\x00"):
		return "", fmt.Errorf("money: token file %s has more than one line", path)
	}
	return token, nil
}
