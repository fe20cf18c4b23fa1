package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/kafka"
)

// The broker makes each connection with SCRAM log in again after a second, so a client with an old password is refused
// soon. One with a token must log in again when that ends, although connections.max.reauth.ms is 0 for it, so nothing
// but the exp of the token ends a login. Meanwhile records are published and handled, and none is lost.
func TestCredentialsOfKafkaAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Kafka)
	tier.Address(t, servers.Kafka) // so the program is here
	cert, _ := pipelinetest.Certificate(t)
	addr, admin, _ := startGuardedKafka(t, &servers.Guard{Keystore: cert, Reauth: time.Second})
	allowLoad(t, admin)

	for mechanism, rotate := range map[string]func(t *testing.T, n int) (credential func() string){
		"SCRAM-SHA-512": func(t *testing.T, n int) func() string {
			password := fmt.Sprintf("scram%d", n)
			altered, err := admin.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{
				{User: "millrace", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: password},
			})
			require.NoError(t, err)
			require.NoError(t, altered.Error())
			return func() string { return password }
		},
		// Each login gets a token of its own, as from a real issuer. With one token per rotation, a busy machine needed
		// longer for a round than the token lived, and nobody could log in any more.
		"OAUTHBEARER": func(_ *testing.T, n int) func() string {
			part := func(json string) string { return base64.RawURLEncoding.EncodeToString([]byte(json)) }
			return func() string {
				now := time.Now()
				return part(`{"alg":"none"}`) + "." +
					part(fmt.Sprintf(`{"sub":"millrace","jti":"%d","iat":%d,"exp":%d}`, n, now.Unix()-1, now.Add(5*time.Second).Unix())) + "."
			}
		},
	} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			topic := "load-" + strings.ToLower(mechanism)
			_, err := admin.CreateTopic(t.Context(), 2, 1, nil, topic)
			require.NoError(t, err)

			var mu sync.Mutex
			current, sent := rotate(t, 0), 0 // how often a connection got a credential since the last rotation
			credential := setting.NewProvidedSecret(current(), func(context.Context) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				sent++
				return current(), nil
			})
			p := kafka.New()
			c := p.Settings().(*kafka.Config)
			c.Brokers, c.CreateTopics, c.TLS = []string{addr}, false, setting.TLS{Enabled: true, CAFile: cert}
			c.SASL.Mechanism = mechanism
			if mechanism == "OAUTHBEARER" {
				c.SASL.Token = credential
			} else {
				c.SASL.User, c.SASL.Password = "millrace", credential
			}
			l := startLoad(t, p, p.Source(topic, topic), p.Sink(topic))
			for n := 1; n <= 3; n++ {
				l.more()
				next := rotate(t, n)
				mu.Lock()
				current, sent = next, 0
				mu.Unlock()
				l.reaches("publisher and reader log in again", func() bool {
					mu.Lock()
					defer mu.Unlock()
					return sent >= 2
				})
			}
			l.stop()
		})
	}
}

// Kafka reads the passwords of PLAIN when it starts. So the broker starts again with another one while
// records are published and handled, and clients are refused until their file has it.
func TestAPlainPasswordOfKafkaIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Kafka)
	tier.Address(t, servers.Kafka) // so the program is here
	cert, _ := pipelinetest.Certificate(t)
	guard := &servers.Guard{Keystore: cert}
	addr, admin, restart := startGuardedKafka(t, guard)
	allowLoad(t, admin)
	_, err := admin.CreateTopic(t.Context(), 2, 1, nil, "load-plain")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "password")
	pipelinetest.Replace(t, file, []byte(guard.Password))
	p := kafka.New()
	c := p.Settings().(*kafka.Config)
	c.Brokers, c.CreateTopics, c.TLS = []string{addr}, false, setting.TLS{Enabled: true, CAFile: cert}
	c.SASL.Mechanism, c.SASL.User = "PLAIN", "millrace"
	require.NoError(t, c.SASL.Password.UnmarshalText([]byte("file:"+file)))
	l := startLoad(t, p, p.Source("load-plain", "load-plain"), p.Sink("load-plain"))
	for _, password := range []string{"another1", "another2"} {
		l.more()
		guard.Password = password
		restart()
		pipelinetest.Replace(t, file, []byte(password))
	}
	l.stop()
}

// allowLoad gives the user the rights of these tests.
func allowLoad(t *testing.T, admin *kadm.Client) {
	t.Helper()
	allow(t, admin, strings.Fields("--add --allow-principal User:millrace --resource-pattern-type prefixed --topic load- --operation Read --operation Write --operation Describe"))
	allow(t, admin, strings.Fields("--add --allow-principal User:millrace --resource-pattern-type prefixed --group load- --operation Read"))
}

// load publishes messages all the time, and handles them.
type load struct {
	t         *testing.T
	end       context.CancelFunc
	published chan int

	mu      sync.Mutex
	handled map[string]bool
}

func startLoad(t *testing.T, p pipeline.Plugin, from pipeline.Source, to pipeline.Sink) *load {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	l := &load{t: t, end: end, published: make(chan int, 1), handled: map[string]bool{}}
	pipelinetest.Start(t, p, onePlugin{pipeline.Route{
		Name: "load", From: from, Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")},
		Handle: func(m *message.Message) ([]*message.Message, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.handled[string(m.Payload)] = true
			return nil, nil
		},
	}})
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			for to.Publish(t.Context(), message.NewMessage(watermill.NewULID(), []byte(fmt.Sprint(n)))) != nil {
				if t.Context().Err() != nil {
					return
				}
			}
		}
		l.published <- n
	}()
	return l
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.handled)
}

func (l *load) reaches(what string, ok func() bool) {
	l.t.Helper()
	require.Eventually(l.t, ok, 2*time.Minute, 10*time.Millisecond, what)
}

// more waits until further messages are handled.
func (l *load) more() {
	l.t.Helper()
	before := l.count()
	l.reaches("messages are handled", func() bool { return l.count() > before+100 })
}

// stop ends the publishing when it works, and waits until all that was published is handled.
func (l *load) stop() {
	l.t.Helper()
	l.more()
	l.end()
	n := <-l.published
	l.reaches("each published message is handled", func() bool { return l.count() == n })
}

// onePlugin is a plugin of one route.
type onePlugin struct{ route pipeline.Route }

func (onePlugin) Name() string { return "load" }

func (p onePlugin) Register(r *pipeline.Registry) error { r.Route(p.route); return nil }
