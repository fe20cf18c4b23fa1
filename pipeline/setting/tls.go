package setting

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// maxCertificates is the largest file of certificates, in bytes. The roots of a system are a tenth of it.
const maxCertificates = 4 << 20

// TLS is a client's settings section tls. The zero value means no encryption.
type TLS struct {
	Enabled            bool   `yaml:"enabled"`
	CAFile             string `yaml:"ca_file"`     // PEM; empty: the system's roots
	CertFile           string `yaml:"cert_file"`   // PEM, together with KeyFile
	KeyFile            string `yaml:"key_file"`    // PEM, together with CertFile
	ServerName         string `yaml:"server_name"` // empty: the host of the address
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify"`
}

// Validate reports all errors at once; it reads the files.
func (t TLS) Validate() error {
	_, err := t.Load()
	if (t.CertFile == "") != (t.KeyFile == "") {
		err = errors.Join(&FieldError{Path: "cert_file", Problem: "must be set together with key_file"}, err)
	}
	return err
}

// Load reads the files and returns the client's TLS configuration of this moment, nil without
// encryption. Its error is a *FieldError.
func (t TLS) Load() (*tls.Config, error) {
	live, err := t.Live("", nil)
	if err != nil {
		return nil, err
	}
	return live.Config(context.Background()), nil
}

// LiveTLS is the current TLS configuration of a client that runs for longer than its certificates are
// valid. Files are read again after they were changed or replaced. While one of them is missing,
// incomplete or not valid, or a certificate and its key do not belong together, the last good
// configuration stays in use and a warning is logged once a minute. It is safe for concurrent use.
type LiveTLS struct{ of *liveFiles[*tls.Config] } // nil: no encryption

// Live reads the files and returns the configuration, which follows them from then on. The name says in
// warnings what it is for, such as the path of its settings. Its error is a *FieldError. A nil log
// discards.
func (t TLS) Live(name string, log *slog.Logger) (*LiveTLS, error) {
	if !t.Enabled {
		return &LiveTLS{}, nil
	}
	var paths []string
	if t.CAFile != "" {
		paths = append(paths, t.CAFile)
	}
	if t.CertFile != "" && t.KeyFile != "" {
		paths = append(paths, t.CertFile, t.KeyFile)
	}
	of, err := follow(name, log, paths, t.parse)
	return &LiveTLS{of}, t.fieldError(err)
}

func (t TLS) parse(contents [][]byte, last *tls.Config) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	if t.CAFile != "" {
		c.RootCAs = x509.NewCertPool()
		if err := complete(t.CAFile, contents[0]); err != nil {
			return nil, err
		}
		if !c.RootCAs.AppendCertsFromPEM(contents[0]) {
			return nil, &fileError{t.CAFile, errors.New("it contains no certificate")}
		}
		contents = contents[1:]
	}
	if len(contents) == 0 {
		return c, nil
	}
	pair, err := keyPair(t.CertFile, t.KeyFile, contents, last != nil)
	if err != nil {
		return nil, err
	}
	c.Certificates = []tls.Certificate{*pair}
	return c, nil
}

// fieldError names the setting of a file that can't be used.
func (t TLS) fieldError(err error) error {
	if err == nil {
		return nil
	}
	path := "cert_file"
	switch pathOf(err) {
	case "", t.CertFile:
	case t.CAFile:
		path = "ca_file"
	case t.KeyFile:
		path = "key_file"
	}
	return &FieldError{Path: path, Problem: err.Error()}
}

// Config returns the configuration for a new connection, nil without encryption. It is the same one
// until a file changes, and must not be changed.
func (l *LiveTLS) Config(ctx context.Context) *tls.Config {
	if l == nil || l.of == nil {
		return nil
	}
	return l.of.current(ctx)
}

// Client encrypts a connection that was opened to address, host:port, with the configuration of this
// moment. It closes the connection if that fails or ctx ends first. Without encryption it returns conn.
func (l *LiveTLS) Client(ctx context.Context, conn net.Conn, address string) (net.Conn, error) {
	c := l.Config(ctx)
	if c == nil {
		return conn, nil
	}
	if c.ServerName == "" {
		c = c.Clone()
		c.ServerName = cmp.Or(hostOf(address), address)
	}
	secure := tls.Client(conn, c)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return secure, nil
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

// ServerTLS is a server's settings section tls. The zero value means no encryption.
type ServerTLS struct {
	CertFile string `yaml:"cert_file"` // PEM, with the chain
	KeyFile  string `yaml:"key_file"`  // PEM
}

// Validate reports all errors at once; it reads the files.
func (t ServerTLS) Validate() error {
	_, err := t.Live("", nil)
	return err
}

// Live reads the files and returns the server's TLS configuration, nil without encryption. Each handshake
// has the certificate of that moment, as LiveTLS says. The name says in warnings what it is for, such as
// the path of its settings. Its error is a *FieldError. A nil log discards.
func (t ServerTLS) Live(name string, log *slog.Logger) (*tls.Config, error) {
	switch {
	case t.CertFile == "" && t.KeyFile == "":
		return nil, nil
	case t.CertFile == "" || t.KeyFile == "":
		return nil, &FieldError{Path: "cert_file", Problem: "must be set together with key_file"}
	}
	pair, err := follow(name, log, []string{t.CertFile, t.KeyFile}, func(contents [][]byte, last *tls.Certificate) (*tls.Certificate, error) {
		return keyPair(t.CertFile, t.KeyFile, contents, last != nil)
	})
	if err != nil {
		return nil, TLS{CertFile: t.CertFile, KeyFile: t.KeyFile}.fieldError(err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return pair.current(hello.Context()), nil
	}}, nil
}

// keyPair returns a certificate with its key. One that replaces another one must be valid now.
func keyPair(certFile, keyFile string, contents [][]byte, replaces bool) (*tls.Certificate, error) {
	for i, path := range []string{certFile, keyFile} {
		if err := complete(path, contents[i]); err != nil {
			return nil, err
		}
	}
	pair, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return nil, &fileError{certFile, fmt.Errorf("with the key in %s: %w", keyFile, err)}
	}
	switch now := time.Now(); {
	case replaces && now.After(pair.Leaf.NotAfter):
		return nil, &fileError{certFile, fmt.Errorf("the certificate has ended at %s", pair.Leaf.NotAfter.UTC().Format(time.RFC3339))}
	case replaces && now.Before(pair.Leaf.NotBefore):
		return nil, &fileError{certFile, fmt.Errorf("the certificate is valid from %s on", pair.Leaf.NotBefore.UTC().Format(time.RFC3339))}
	}
	return &pair, nil
}

// complete refuses a file that ends within a block: it is being written, or was copied in part. The
// parsers skip such a block, and would believe that the file has fewer certificates.
func complete(path string, content []byte) error {
	for {
		block, rest := pem.Decode(content)
		if block != nil {
			content = rest
			continue
		}
		if strings.Contains(string(content), "-----BEGIN ") {
			return &fileError{path, errors.New("it ends within a block of PEM, so it is not complete")}
		}
		return nil
	}
}

// liveFiles is a value of certificates, which logs what becomes of it.
type liveFiles[T comparable] struct {
	followed[T]
	name string
	log  *slog.Logger
	warn *logs.Throttle
}

func follow[T comparable](name string, log *slog.Logger, paths []string, parse func([][]byte, T) (T, error)) (*liveFiles[T], error) {
	f := &liveFiles[T]{
		followed: followed[T]{paths: paths, limit: maxCertificates, parse: parse},
		name:     name, log: cmp.Or(log, slog.New(slog.DiscardHandler)), warn: logs.NewThrottle(secretWarning),
	}
	_, _, err := f.look()
	return f, err
}

func (f *liveFiles[T]) current(ctx context.Context) T {
	value, changed, err := f.look()
	switch {
	case err != nil:
		f.warn.Warn(f.log, "certificates can't be read again, so the last ones stay in use", slog.String("of", f.name), logs.Err(err))
	case changed:
		f.log.InfoContext(ctx, "certificates were read again and have changed", slog.String("of", f.name), slog.Any("files", f.paths))
	}
	return value
}
