package once_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// PostgreSQL takes certificates of another authority and another password, and ends all connections, while
// effects are accepted and called for. The client's files follow a moment later. A call that could not be
// stored would be unknown here, and one that was repeated would be counted twice, because the far side knows
// no keys.
func TestCertificatesAndPasswordOfPostgresAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	tier.Rest(t)
	server := sqldbtest.NewEncrypted(t, "password0")
	w := oncetest.On(t, server.DSNOfFiles())

	var mu sync.Mutex
	called := map[string]int{}
	p := newInvoices(w.Once, once.Never, func(k *once.Kind[invoice], _ *once.KindConfig) {
		k.Call = func(_ context.Context, a once.Attempt[invoice]) once.Answer {
			mu.Lock()
			defer mu.Unlock()
			called[a.Idempotency]++
			return once.IsDone("")
		}
	})
	w.Start(p)
	with, without := server.Encrypted()
	require.Positive(t, with)
	require.Zero(t, without)

	ctx, end := context.WithCancel(t.Context())
	defer end()
	refused := make(chan error)
	accepted := make(chan int, 1)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			one := invoice{Customer: fmt.Sprint("c", n%7), Number: fmt.Sprint(n)}
			for {
				_, err := p.effects.Enqueue(t.Context(), one)
				if err == nil || t.Context().Err() != nil {
					break
				}
				select {
				case refused <- err:
				default:
				}
			}
		}
		accepted <- n
	}()
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(called)
	}
	reaches := func(what string, ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, 2*time.Minute, 10*time.Millisecond, what)
	}
	more := func() {
		t.Helper()
		before := count()
		reaches("effects are called for", func() bool { return count() > before+100 })
	}
	isRefused := func(because string) {
		t.Helper()
		patience := time.After(2 * time.Minute)
		for {
			select {
			case err := <-refused:
				if strings.Contains(err.Error(), because) {
					return
				}
			case <-patience:
				require.Fail(t, "nobody is refused", because)
			}
		}
	}
	for n := range 3 {
		more()
		a := pipelinetest.NewAuthority(t)
		server.RotateServer(a)
		isRefused("certificate")
		server.RotateClient(a)
		more()
		password := fmt.Sprint("password", n+1)
		server.SetPassword(password)
		isRefused("password authentication failed")
		server.WritePassword(password)
	}
	more()
	end()
	n := <-accepted
	require.NoError(t, t.Context().Err())
	reaches("each effect is called for", func() bool { return count() == n })
	for i := range n {
		one := invoice{Customer: fmt.Sprint("c", i%7), Number: fmt.Sprint(i)}
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State, one.Number)
		require.Equal(t, 1, called[one.idempotency()], one.Number)
	}
	with, without = server.Encrypted()
	require.Positive(t, with)
	require.Zero(t, without)
}
