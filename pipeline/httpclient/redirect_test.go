package httpclient_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/httpclient"
)

func TestAnErrorWithoutItsAddress(t *testing.T) {
	t.Parallel()
	away := httptest.NewServer(nil)
	away.Close()
	_, err := http.Get(strings.Replace(away.URL, "://", "://ann:p4ss@", 1) + "/hidden?k=s") //nolint:bodyclose // there is no answer
	require.ErrorContains(t, err, "hidden")
	without := httpclient.WithoutURL(err)
	require.ErrorContains(t, without, "connection refused")
	for _, part := range []string{"ann", "hidden", "k=s"} {
		require.NotContains(t, without.Error(), part)
	}

	_, err = http.NewRequestWithContext(t.Context(), http.MethodGet, "http://[::1/hidden", http.NoBody)
	require.ErrorContains(t, err, "hidden")
	require.NotContains(t, httpclient.WithoutURL(err).Error(), "hidden")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, away.URL, http.NoBody)
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(r) //nolint:bodyclose // there is no answer
	require.ErrorIs(t, httpclient.WithoutURL(err), context.Canceled)

	other := errors.New("another error")
	require.Equal(t, other, httpclient.WithoutURL(other))
}
