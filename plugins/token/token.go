package token

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Leeway is how long after its end a token is still valid, because clocks differ.
const Leeway = 30 * time.Second

const maxSize = 8 << 10 // bytes of a token

// Errors of Verify. All other errors of Verify wrap ErrForged.
var (
	// ErrExpired means that the time of the token is over. The caller answers 401. The claims are
	// those of the token.
	ErrExpired = errors.New("token: expired")
	// ErrForged means that none of the keys signed this token. The caller answers 401.
	ErrForged = errors.New("token: not signed by a known key")
	// ErrAudience means that the token is valid, and made for another use. The caller answers 403.
	ErrAudience = errors.New("token: for another audience")
)

// Claims are the content of a token.
type Claims struct {
	Audience string // what the token is for, such as millrace-jobs
	Subject  string // the user; may be empty
	ID       string // may be empty
	Expires  time.Time
	Job      []string // the jobs that it opens, <domain>/<job_id>
}

// payload is the JSON of the claims.
type payload struct {
	Audience texts            `json:"aud"`
	Subject  string           `json:"sub,omitempty"`
	ID       string           `json:"jti,omitempty"`
	Expires  *jwt.NumericDate `json:"exp"`
	Job      texts            `json:"job,omitempty"`
}

// texts is a text, or a list of them.
type texts []string

// MarshalJSON writes a single text without a list.
func (t texts) MarshalJSON() ([]byte, error) {
	if len(t) == 1 {
		return json.Marshal(t[0])
	}
	return json.Marshal([]string(t))
}

// UnmarshalJSON reads a text or a list.
func (t *texts) UnmarshalJSON(raw []byte) error {
	var one string
	if err := json.Unmarshal(raw, &one); err == nil {
		*t = texts{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(t))
}

type key struct {
	kid    string
	public ed25519.PublicKey
	signer jose.Signer
}

// newKey returns a key. Without a kid its name is its thumbprint.
func newKey(kid string, private ed25519.PrivateKey) (key, error) {
	k := key{kid: kid, public: ed25519.PublicKey(private[ed25519.PublicKeySize:])}
	if kid == "" {
		thumbprint, err := (&jose.JSONWebKey{Key: k.public}).Thumbprint(crypto.SHA256)
		if err != nil {
			return key{}, fmt.Errorf("token: thumbprint: %w", err)
		}
		k.kid = base64.RawURLEncoding.EncodeToString(thumbprint)
	}
	var err error
	k.signer, err = jose.NewSigner(jose.SigningKey{
		Algorithm: jose.EdDSA, Key: jose.JSONWebKey{Key: private, KeyID: k.kid},
	}, (&jose.SignerOptions{}).WithType("JWT"))
	return k, err
}

// Plugin signs and verifies tokens. Its methods may be called after Register, by any goroutine.
type Plugin struct {
	config   Config
	files    []*setting.LiveFile[*keyFile]
	own      []key // of this process, without files
	verified *prometheus.CounterVec
}

// New returns the plugin without keys.
func New() *Plugin {
	p := &Plugin{verified: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "millrace_token_verifications_total", Help: "Tokens verified, by result: valid, expired, forged, audience.",
	}, []string{"result"})}
	for _, result := range []string{"valid", "expired", "forged", "audience"} {
		p.verified.WithLabelValues(result)
	}
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "token" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Config returns a copy of the settings, which are final when plugins are registered. It is for
// plugins that stand on this one.
func (p *Plugin) Config() Config { return p.config }

// Register implements pipeline.Plugin. It reads the keys, whose files are read again when they change. A plugin that
// uses tokens names this one in its Needs.
func (p *Plugin) Register(r *pipeline.Registry) (err error) {
	r.Collect(p.verified)
	if p.files, err = p.config.load(r.Env().Logger); err != nil {
		return err
	}
	for _, k := range p.config.Keys {
		if info, err := os.Stat(k.File); err == nil && info.Mode().Perm()&0o007 != 0 {
			r.Env().Logger.Warn("each user of this machine can read the key: its tokens can be forged", slog.String("file", k.File))
		}
	}
	if len(p.files) > 0 {
		return nil
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return fmt.Errorf("new key: %w", err)
	}
	own, err := newKey("this-process", private)
	p.own = []key{own}
	return err
}

// keys returns the current keys, the one that signs first. There is at least one.
func (p *Plugin) keys() []key {
	all := p.own
	for _, file := range p.files {
		for _, k := range file.Value(context.Background()).keys {
			if !slices.ContainsFunc(all, func(other key) bool { return other.kid == k.kid }) { // the same key in two files
				all = append(all, k)
			}
		}
	}
	return all
}

// Sign returns the token with these claims. Audience and Expires are required.
func (p *Plugin) Sign(c Claims) (string, error) {
	if c.Audience == "" || c.Expires.IsZero() {
		return "", errors.New("token: sign: the audience and the end must be set")
	}
	raw, err := jwt.Signed(p.keys()[0].signer).Claims(payload{
		Audience: texts{c.Audience}, Subject: c.Subject, ID: c.ID, Expires: jwt.NewNumericDate(c.Expires), Job: c.Job,
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("token: sign: %w", err)
	}
	if len(raw) > maxSize {
		return "", fmt.Errorf("token: sign: it has %d bytes, more than %d", len(raw), maxSize)
	}
	return raw, nil
}

// Verify returns the claims of a token that was made for the audience and has not ended. With
// ErrExpired it returns the claims too.
func (p *Plugin) Verify(audience, raw string) (Claims, error) {
	c, err := p.verify(audience, raw)
	result := "valid"
	switch {
	case errors.Is(err, ErrExpired):
		result = "expired"
	case errors.Is(err, ErrAudience):
		result = "audience"
	case err != nil:
		result = "forged"
	}
	p.verified.WithLabelValues(result).Inc()
	return c, err
}

func (p *Plugin) verify(audience, raw string) (Claims, error) {
	if len(raw) > maxSize {
		return Claims{}, fmt.Errorf("%w: it has %d bytes, more than %d", ErrForged, len(raw), maxSize)
	}
	token, err := jwt.ParseSigned(raw, []jose.SignatureAlgorithm{jose.EdDSA})
	if err != nil {
		return Claims{}, fmt.Errorf("%w: %w", ErrForged, err)
	}
	header := token.Headers[0]
	if _, critical := header.ExtraHeaders["crit"]; critical {
		return Claims{}, fmt.Errorf("%w: it has critical headers", ErrForged)
	}
	keys := p.keys()
	i := slices.IndexFunc(keys, func(k key) bool { return k.kid == header.KeyID })
	if i < 0 {
		return Claims{}, fmt.Errorf("%w: no key has its kid", ErrForged)
	}
	var read payload
	if err := token.Claims(keys[i].public, &read); err != nil {
		return Claims{}, fmt.Errorf("%w: %w", ErrForged, err)
	}
	if read.Expires == nil {
		return Claims{}, fmt.Errorf("%w: it has no end", ErrForged)
	}
	if !slices.Contains(read.Audience, audience) {
		return Claims{}, ErrAudience
	}
	c := Claims{Audience: audience, Subject: read.Subject, ID: read.ID, Expires: read.Expires.Time(), Job: read.Job}
	if time.Since(c.Expires) > Leeway {
		return c, ErrExpired
	}
	return c, nil
}

// KeySet returns the current public keys as a JSON Web Key Set.
func (p *Plugin) KeySet() ([]byte, error) {
	set := jose.JSONWebKeySet{}
	for _, k := range p.keys() {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.public, KeyID: k.kid, Algorithm: string(jose.EdDSA), Use: "sig"})
	}
	return json.Marshal(set)
}

var _ pipeline.Configurable = (*Plugin)(nil)
