package oncehttp

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// The first calls come together and wait for the provided token, because there is no earlier one that they could send.
func TestTheFirstCallsWaitForAProvidedToken(t *testing.T) {
	t.Parallel()
	asked := 0
	token := setting.NewProvidedSecret("", func(context.Context) (string, error) {
		asked++
		<-time.After(50 * time.Millisecond) // a call that does not wait has sent nothing by then
		return "good", nil
	})
	all := newTokens("test", token, nil, nil)
	sent := make(chan string, 8)
	for range cap(sent) {
		go func() { sent <- all.get(t.Context()).token }()
	}
	for range cap(sent) {
		require.Equal(t, "good", <-sent)
	}
	require.Equal(t, 1, asked)
}
