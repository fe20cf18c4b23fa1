package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/webhook"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// verifier is a receiver that checks signatures, and writes down what it got and what it refused.
type verifier struct {
	mu       sync.Mutex
	accepted []string
	used     map[string]bool          // secrets of signatures
	got      map[string]chan struct{} // by id, closed when the record has come
	refused  int
}

func (v *verifier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id := r.Header.Get("Webhook-Id")
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, secret := range v.accepted {
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "%s.%s.%s", id, r.Header.Get("Webhook-Timestamp"), body)
		if r.Header.Get("Webhook-Signature") == "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
			v.used[secret] = true
			if got := v.got[id]; got != nil { // a record may come twice
				close(got)
				delete(v.got, id)
			}
			return
		}
	}
	v.refused++
	w.WriteHeader(http.StatusUnauthorized)
}

func (v *verifier) accept(secrets ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.accepted = secrets
}

// has reports whether a request was signed with a secret, and how many were refused.
func (v *verifier) has(secret string) (used bool, refused int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.used[secret], v.refused
}

// The receiver takes the old and the new secret for a while, and then only the new one, so it refuses nothing. At the
// end it takes the new one before the file has it: what it refuses then waits, and no record becomes a dead letter.
func TestTheSecretIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	v := &verifier{used: map[string]bool{}, got: map[string]chan struct{}{}}
	receiver := httptest.NewServer(v)
	t.Cleanup(receiver.Close)
	file := filepath.Join(t.TempDir(), "secret")
	replace := func(secret string) { pipelinetest.Replace(t, file, []byte(secret+"\n")) }
	replace("secret 0")
	v.accept("secret 0")
	in, dead := start(t, receiver.URL, func(c *webhook.Config) {
		require.NoError(t, c.Secret.UnmarshalText([]byte("file:"+file)))
		c.MaxRetries = 10_000_000 // topics in memory keep nothing back
	})
	var sent atomic.Int64
	load := pipelinetest.StartLoad(t, 4, func(int) error {
		id, got := fmt.Sprint("order-", sent.Add(1)), make(chan struct{})
		v.mu.Lock()
		v.got[id] = got
		v.mu.Unlock()
		in.Send(message.NewMessage(id, []byte(`{"id":1}`)))
		select {
		case <-got:
			return nil
		case <-t.Context().Done():
			return t.Context().Err()
		}
	})
	last := "secret 0"
	for n := 1; n <= 5; n++ {
		load.More()
		secret := fmt.Sprint("secret ", n)
		v.accept(last, secret)
		replace(secret)
		load.Until("a record is signed with the new secret", func() bool {
			used, _ := v.has(secret)
			return used
		})
		load.More() // no request is under way with the old one
		v.accept(secret)
		last = secret
	}
	load.More()
	_, refused := v.has(last)
	require.Zero(t, refused)

	v.accept("the last secret")
	load.Until("records are refused", func() bool {
		_, refused := v.has(last)
		return refused > 0
	})
	replace("the last secret")
	load.More()
	calls := load.Stop()
	require.Equal(t, sent.Load(), calls, "each record was taken")
	require.Empty(t, dead.Messages())
}
