package web_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// The sign-in gets a new key all the time: it is published, then it signs, and then the old one is removed. No
// user is refused, and the tokens of a removed key are.
func TestKeysOfAFileAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	const rotations = 30
	var kids []string
	for n := range rotations + 1 {
		kids = append(kids, fmt.Sprint("key ", n))
	}
	id := newIdentity(t, kids...)
	tokens := make([]string, len(kids))
	for n, kid := range kids {
		tokens[n] = id.token(kid, nil)
	}
	file := filepath.Join(t.TempDir(), "jwks.json")
	pipelinetest.Replace(t, file, id.set(kids[0]))
	r := signInRig(t, signin.Config{JWKSFile: file})
	status := func(token string) (int, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.web.Addr()+"/users", http.NoBody)
		if err != nil {
			return 0, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := r.client.Do(request)
		if err != nil {
			return 0, err
		}
		return answer.StatusCode, answer.Body.Close()
	}
	var signs atomic.Int64
	load := pipelinetest.StartLoad(t, 4, func(int) error {
		n := signs.Load()
		got, err := status(tokens[n])
		if err == nil && got != http.StatusOK {
			err = fmt.Errorf("a token of key %d was refused with status %d", n, got)
		}
		return err
	})
	for n := 1; n <= rotations; n++ {
		load.More()
		pipelinetest.Replace(t, file, id.set(kids[n-1], kids[n]))
		signs.Store(int64(n))
		load.More() // nobody has a token of the old key any more
		pipelinetest.Replace(t, file, id.set(kids[n]))
		got, err := status(tokens[n-1])
		require.NoError(t, err)
		require.Equal(t, http.StatusUnauthorized, got)
	}
	load.More()
	load.Stop()
}

// gates is a log whose writer waits in each entry with a text, until it is let go.
type gates struct {
	slog.Handler
	stops map[string]chan chan struct{}
}

func (gates) Enabled(context.Context, slog.Level) bool { return true }

func (g gates) Handle(_ context.Context, r slog.Record) error {
	for text, stop := range g.stops {
		if strings.Contains(r.Message, text) {
			let := make(chan struct{})
			stop <- let
			<-let
		}
	}
	return nil
}

// A request that has read an earlier file is late, and must not take the keys of the later one away from another.
func TestALateRequestBringsNoOldKeysBack(t *testing.T) {
	t.Parallel()
	const read, skipped = "file was read again", "keys of the sign-in skipped"
	id := newIdentity(t, "a", "b", "c")
	file := id.file("a")
	stops := map[string]chan chan struct{}{read: make(chan chan struct{}), skipped: make(chan chan struct{})}
	keys, err := signin.NewKeys(signin.Config{JWKSFile: file, Issuer: "https://id.example", Audience: "site"}, "plugins.web.auth",
		slog.New(gates{slog.DiscardHandler, stops}))
	require.NoError(t, err)
	uses := func(kid string) chan error {
		ended, token := make(chan error, 1), id.token(kid, nil)
		go func() {
			_, err := keys.User(t.Context(), token)
			ended <- err
		}()
		return ended
	}
	pipelinetest.Replace(t, file, id.set("a", "b"))
	late := uses("b")
	letLate := <-stops[read]
	odd := strings.Replace(string(id.set("b", "c")), "[", `["odd",`, 1)
	pipelinetest.Replace(t, file, []byte(odd))
	other := uses("c")
	close(<-stops[read])
	letOther := <-stops[skipped] // it has the later file, and has not looked for its key
	close(letLate)
	require.NoError(t, <-late)
	close(letOther)
	require.NoError(t, <-other)
}
