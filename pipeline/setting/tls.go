package setting

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
)

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

// Load reads the files and returns the client's TLS configuration, nil without encryption. Its
// error is a *FieldError.
func (t TLS) Load() (*tls.Config, error) {
	if !t.Enabled {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, &FieldError{Path: "ca_file", Problem: err.Error()}
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &FieldError{Path: "ca_file", Problem: t.CAFile + " contains no certificate"}
		}
	}
	if t.CertFile != "" && t.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, &FieldError{Path: "cert_file", Problem: err.Error()}
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}
