package webhook_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/webhook"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// An error is kept in logs, in the headers of retry records and in dead letters, which more people read than the
// settings. It names the server, and nothing else of the address.
func TestTheRestOfTheAddressIsInNoError(t *testing.T) {
	t.Parallel()
	hidden := []string{"ann", "p4ss", "secret", "k=s"}
	for name, status := range map[string]int{"an answer that is retried": 500, "an answer that is final": 404, "no answer": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
			defer receiver.Close()
			if status == 0 {
				receiver.Close()
			}
			p := webhook.New(&pipelinetest.Topics{}, &pipelinetest.Topics{})
			config := p.Settings().(*webhook.Config)
			config.URL, config.Secret = strings.Replace(receiver.URL, "://", "://ann:p4ss@", 1)+"/secret?k=s", setting.NewSecret(secret)
			require.NoError(t, config.Validate())
			registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
			require.NoError(t, err)
			_, err = registry.Routes()[0].Handle(message.NewMessage("order-1", []byte(`{"id":1}`)))
			require.ErrorContains(t, err, strings.TrimPrefix(receiver.URL, "http://"))
			for _, part := range hidden {
				require.NotContains(t, err.Error(), part)
			}
		})
	}
	config := webhook.Config{URL: "ann:p4ss@shop.example/hooks"} // without https://
	require.ErrorContains(t, config.Validate(), "url: must be")
	require.NotContains(t, config.Validate().Error(), "p4ss")
}
