package e2e

import (
	"context"
	"encoding/base64"
	"fmt"
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

// The broker makes each connection log in again after a second, so a client with an old credential is
// refused soon. Meanwhile records are published and handled, and none is lost.
func TestCredentialsOfKafkaAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Kafka)
	tier.Address(t, servers.Kafka) // so the program is here
	cert, _ := pipelinetest.Certificate(t)
	addr, admin := startGuardedKafka(t, cert, time.Second)
	allow(t, admin, strings.Fields("--add --allow-principal User:millrace --resource-pattern-type prefixed --topic load- --operation Read --operation Write --operation Describe"))
	allow(t, admin, strings.Fields("--add --allow-principal User:millrace --resource-pattern-type prefixed --group load- --operation Read"))

	for mechanism, rotate := range map[string]func(t *testing.T, n int) string{
		"SCRAM-SHA-512": func(t *testing.T, n int) string {
			password := fmt.Sprintf("scram%d", n)
			altered, err := admin.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{
				{User: "millrace", Mechanism: kadm.ScramSha512, Iterations: 4096, Password: password},
			})
			require.NoError(t, err)
			require.NoError(t, altered.Error())
			return password
		},
		"OAUTHBEARER": func(_ *testing.T, n int) string { // the broker ends a login with its token
			part := func(json string) string { return base64.RawURLEncoding.EncodeToString([]byte(json)) }
			now := time.Now()
			return part(`{"alg":"none"}`) + "." +
				part(fmt.Sprintf(`{"sub":"millrace","jti":"%d","iat":%d,"exp":%d}`, n, now.Unix()-1, now.Add(10*time.Second).Unix())) + "."
		},
	} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			topic := "load-" + strings.ToLower(mechanism)
			_, err := admin.CreateTopic(t.Context(), 2, 1, nil, topic)
			require.NoError(t, err)

			var mu sync.Mutex
			current, sent := rotate(t, 0), map[string]int{} // by credential, how often a connection got it
			handled := map[string]bool{}
			credential := setting.NewProvidedSecret(current, func(context.Context) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				sent[current]++
				return current, nil
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
			pipelinetest.Start(t, p, onePlugin{pipeline.Route{
				Name: "load", From: p.Source(topic, topic), Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")},
				Handle: func(m *message.Message) ([]*message.Message, error) {
					mu.Lock()
					defer mu.Unlock()
					handled[string(m.Payload)] = true
					return nil, nil
				},
			}})
			ctx, stop := context.WithCancel(t.Context())
			published := make(chan int, 1)
			go func() {
				n := 0
				for ; ctx.Err() == nil; n++ {
					for p.Sink(topic).Publish(t.Context(), message.NewMessage(watermill.NewULID(), []byte(fmt.Sprint(n)))) != nil {
						if t.Context().Err() != nil {
							return
						}
					}
				}
				published <- n
			}()
			reaches := func(what string, ok func() bool) {
				t.Helper()
				require.Eventually(t, func() bool {
					mu.Lock()
					defer mu.Unlock()
					return ok()
				}, 2*time.Minute, 10*time.Millisecond, what)
			}
			more := func() {
				t.Helper()
				mu.Lock()
				before := len(handled)
				mu.Unlock()
				reaches("records are handled", func() bool { return len(handled) > before+100 })
			}
			for n := 1; n <= 3; n++ {
				more()
				next := rotate(t, n)
				mu.Lock()
				current = next
				mu.Unlock()
				reaches("publisher and reader log in again", func() bool { return sent[next] >= 2 })
			}
			more()
			stop()
			n := <-published
			reaches("each published record is handled", func() bool { return len(handled) == n })
		})
	}
}

// onePlugin is a plugin of one route.
type onePlugin struct{ route pipeline.Route }

func (onePlugin) Name() string { return "load" }

func (p onePlugin) Register(r *pipeline.Registry) error { r.Route(p.route); return nil }
