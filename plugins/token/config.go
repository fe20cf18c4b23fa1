package token

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
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

// KeyConfig is a key.
type KeyConfig struct {
	// Kid is the name of the key in the header of its tokens.
	Kid string `yaml:"kid"`
	// File has the private key: Ed25519, PKCS #8, PEM.
	File string `yaml:"file"`
}

// Validate reports all errors at once; it reads the files.
func (c *Config) Validate() error {
	_, err := c.load()
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

func (c *Config) load() ([]key, error) {
	var p setting.Problems
	var keys []key
	known := map[string]bool{}
	for i, k := range c.Keys {
		at := fmt.Sprintf("keys[%d]", i)
		p.Check(k.Kid != "", at+".kid", "must be set")
		p.Check(!known[k.Kid], at+".kid", "must differ from the other keys, got %q twice", k.Kid)
		known[k.Kid] = true
		private, err := read(k.File)
		if err != nil {
			p.Check(false, at+".file", "%s", err)
			continue
		}
		keys = append(keys, key{k.Kid, private})
	}
	return keys, p.Err()
}

func read(file string) (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s contains no PEM", file)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s contains no PKCS #8 key", file)
	}
	private, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s contains another kind of key than Ed25519", file)
	}
	return private, nil
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
