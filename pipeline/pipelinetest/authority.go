package pipelinetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Authority signs certificates of a test, so that servers and clients can be given others while they run.
type Authority struct {
	// PEM is the certificate of the authority.
	PEM []byte

	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority, which is valid for an hour.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority of " + t.Name()}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	a.cert, a.key = a.sign(template)
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
	return a
}

// Issue makes a certificate of 127.0.0.1 for a server or a client of that name, which ends at until. A name
// with a dot is also the host that it is valid for. Issue returns the key (PKCS #8) and the certificate in PEM. Both in one file are what Certificate writes.
func (a *Authority) Issue(name string, until time.Time) (key, cert []byte) {
	a.t.Helper()
	var hosts []string
	if strings.Contains(name, ".") {
		hosts = []string{name}
	}
	made, private := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: hosts, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	der, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(a.t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Raw})
}

// sign makes a certificate with a key of its own. The first one signs itself.
func (a *Authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(a.t, err)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.t, err)
	made, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return made, key
}

// Replace writes a file as rotating tools do: in one step, by a rename.
func Replace(t testing.TB, file string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(file+".new", content, 0o600))
	require.NoError(t, os.Rename(file+".new", file))
}
