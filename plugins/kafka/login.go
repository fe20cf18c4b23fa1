package kafka

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// apply sets how the connections of s log in. Each connection, and each renewed login of one
// (connections.max.reauth.ms), has the credential of that moment.
func (a SASL) apply(s *sarama.Config, log *slog.Logger) {
	if a.Mechanism == "" {
		return
	}
	s.Net.SASL.Enable = true
	s.Net.SASL.Mechanism = sarama.SASLMechanism(a.Mechanism)
	if a.Mechanism == sarama.SASLTypeOAuth {
		s.Net.SASL.TokenProvider = tokenProvider{a.Token.Live("plugins.kafka.sasl.token", log, nil), s.Net.DialTimeout}
		return
	}
	password := a.Password.Live("plugins.kafka.sasl.password", log, nil)
	// sarama only checks that there is one. It asks the client of a mechanism, which has the current one.
	s.Net.SASL.User, s.Net.SASL.Password = a.User, "of the client"
	var client func() sarama.SCRAMClient
	switch a.Mechanism {
	case sarama.SASLTypeSCRAMSHA256:
		client = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA256, password: password} }
	case sarama.SASLTypeSCRAMSHA512:
		client = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA512, password: password} }
	case sarama.SASLTypePlaintext:
		// sarama has one password of PLAIN for all connections, and asks a client per login for SCRAM. So
		// PLAIN is a client, too, and its connections name the mechanism in the handshake.
		s.Net.SASL.Mechanism = sarama.SASLTypeSCRAMSHA256
		client = func() sarama.SCRAMClient { return &plainClient{user: a.User, password: password} }
	}
	s.Net.SASL.SCRAMClientGeneratorFunc = client
}

// netDialer is what sarama wants of the dialer of a proxy.
type netDialer interface {
	Dial(network, address string) (net.Conn, error)
}

// dialWith lets the connections of s, which is made by clientConfig, be opened by d.
func dialWith(s *sarama.Config, d netDialer) {
	login := *s.Net.Proxy.Dialer.(*loginDialer)
	login.netDialer, s.Net.Proxy.Dialer = d, &login
}

// tokenProvider gives sarama the current token of OAUTHBEARER.
type tokenProvider struct {
	token   *setting.Live
	timeout time.Duration
}

// Token implements sarama.AccessTokenProvider.
func (p tokenProvider) Token() (*sarama.AccessToken, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	defer cancel()
	return &sarama.AccessToken{Token: p.token.Value(ctx)}, nil
}

// scramClient lets sarama speak SCRAM (RFC 5802) by xdg-go/scram.
type scramClient struct {
	hash     scram.HashGeneratorFcn
	password *setting.Live
	conv     *scram.ClientConversation
}

func (c *scramClient) Begin(user, _, authzID string) error {
	client, err := c.hash.NewClient(user, c.password.Value(context.Background()), authzID)
	if err != nil {
		return err
	}
	c.conv = client.NewConversation()
	return nil
}

func (c *scramClient) Step(challenge string) (string, error) { return c.conv.Step(challenge) }

func (c *scramClient) Done() bool { return c.conv.Done() }

// plainClient speaks PLAIN (RFC 4616), which has one message.
type plainClient struct {
	user     string
	password *setting.Live
	sent     bool
	done     bool
}

func (*plainClient) Begin(string, string, string) error { return nil }

func (c *plainClient) Step(string) (string, error) {
	if c.sent {
		c.done = true
		return "", nil
	}
	c.sent = true
	return "\x00" + c.user + "\x00" + c.password.Value(context.Background()), nil
}

func (c *plainClient) Done() bool { return c.done }

// loginDialer opens connections that are ready for a login. Each is encrypted with the certificates of
// that moment.
type loginDialer struct {
	netDialer
	certificates *setting.LiveTLS
	handshake    time.Duration // bounds that of TLS
	plain        bool          // PLAIN is named in the handshake of SASL, before it is encrypted
}

// Dial implements proxy.Dialer.
func (d *loginDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.netDialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), d.handshake)
	defer cancel()
	if conn, err = d.certificates.Client(ctx, conn, address); err != nil {
		return nil, err
	}
	if d.plain {
		return plainConn{conn}, nil
	}
	return conn, nil
}

// plainConn names PLAIN in each SaslHandshake request. sarama writes a request in one piece.
type plainConn struct{ net.Conn }

// Write implements net.Conn.
func (c plainConn) Write(p []byte) (int, error) {
	named, ok := namePlain(p)
	if !ok {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(named); err != nil {
		return 0, err
	}
	return len(p), nil
}

// namePlain returns a SaslHandshake request with the mechanism PLAIN. ok is false for another request.
// The request has: size (4 bytes), api key (2), version (2), correlation id (4), client id and mechanism,
// each with its length (2).
func namePlain(request []byte) (named []byte, ok bool) {
	const saslHandshake, clientID = 17, 12
	if len(request) < clientID+2 || binary.BigEndian.Uint16(request[4:]) != saslHandshake {
		return nil, false
	}
	mechanism := clientID + 2 + int(binary.BigEndian.Uint16(request[clientID:]))
	if len(request) < mechanism+2 {
		return nil, false
	}
	named = binary.BigEndian.AppendUint16(append([]byte(nil), request[:mechanism]...), uint16(len(sarama.SASLTypePlaintext)))
	named = append(named, sarama.SASLTypePlaintext...)
	binary.BigEndian.PutUint32(named, uint32(len(named)-4)) //nolint:gosec // a few dozen bytes
	return named, true
}

var (
	_ sarama.SCRAMClient         = (*scramClient)(nil)
	_ sarama.SCRAMClient         = (*plainClient)(nil)
	_ sarama.AccessTokenProvider = tokenProvider{}
)
