package token

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Config is the section plugins.token.
type Config struct {
	// Keys are the keys of all instances. The first one signs, and each one verifies. None: a key
	// that only this process has.
	Keys []KeyConfig `yaml:"keys"`
}

// KeyConfig is a file of keys.
type KeyConfig struct {
	// Kid is the name of the key in the header of its tokens. Empty: each key of the file has its thumbprint as its
	// name (RFC 7638), so that a key that takes the place of another one has another name.
	Kid string `yaml:"kid"`
	// File has the private key: Ed25519, PKCS #8, PEM. Without Kid it may have several, the first one first. It is read
	// again when it changes.
	File string `yaml:"file"`
}

const maxKeyFile = 64 << 10 // bytes

// Validate reports all errors at once; it reads the files.
func (c *Config) Validate() error {
	_, err := c.load(nil)
	return err
}

// ValidateIn refuses to run without keys if another plugin needs tokens: the other instances could
// not verify them (app.Placed).
func (p *Plugin) ValidateIn(where app.Where) error {
	var wrong setting.Problems
	wrong.Check(len(p.config.Keys) > 0 || len(where.NeededBy) == 0 || where.Environment != "external", "keys",
		"must have a key that all instances share: openssl genpkey -algorithm ed25519 -out key.pem")
	return wrong.Err()
}

// keyFile is what a file has, the first key first.
type keyFile struct{ keys []key }

// load reads the files, which are read again from then on.
func (c *Config) load(log *slog.Logger) ([]*setting.LiveFile[*keyFile], error) {
	var p setting.Problems
	var files []*setting.LiveFile[*keyFile]
	known := map[string]bool{}
	for i, k := range c.Keys {
		at := fmt.Sprintf("keys[%d]", i)
		p.Check(k.Kid == "" || !known[k.Kid], at+".kid", "must differ from the other keys, got %q twice", k.Kid)
		known[k.Kid] = true
		file, err := setting.NewLiveFile("plugins.token."+at+".file", k.File, maxKeyFile, log, func(text []byte) (*keyFile, error) {
			return parse(k, text)
		})
		if err != nil {
			p.Check(false, at+".file", "%s", err)
			continue
		}
		files = append(files, file)
	}
	return files, p.Err()
}

func parse(c KeyConfig, text []byte) (*keyFile, error) {
	var all keyFile
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s contains no PKCS #8 key", c.File)
		}
		private, ok := parsed.(ed25519.PrivateKey)
		if !ok {
			return nil, fmt.Errorf("%s contains another kind of key than Ed25519", c.File)
		}
		one, err := newKey(c.Kid, private)
		if err != nil {
			return nil, err
		}
		all.keys = append(all.keys, one)
	}
	switch {
	case bytes.Count(text, []byte("-----BEGIN ")) > len(all.keys): // the rest is being written
		return nil, fmt.Errorf("%s contains a key that is not complete", c.File)
	case len(all.keys) == 0:
		return nil, fmt.Errorf("%s contains no PEM", c.File)
	case c.Kid != "" && len(all.keys) > 1:
		return nil, fmt.Errorf("%s contains %d keys, and the kid %q can name only one: leave the kid out", c.File, len(all.keys), c.Kid)
	}
	return &all, nil
}

// CreateKey writes a new key to file, for its owner only. An existing file stays.
func CreateKey(file string) error {
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return fmt.Errorf("token: new key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return fmt.Errorf("token: new key: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return fmt.Errorf("token: new key: %w", err)
	}
	// A killed process must not leave half of a key.
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("token: new key: %w", err)
	}
	return nil
}
