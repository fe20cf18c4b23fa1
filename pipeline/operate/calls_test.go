package operate_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Calls says since when a server does not work, its last answer and what follows, and forgets it with the first
// call that succeeds.
func TestCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &operate.Calls{Name: "the mill", Place: pipeline.ServerOf("https://mill.example/secret"), Then: "each sack waits"}
		require.Empty(t, c.Conditions(), "nobody knows before the first call")
		c.Failed("answered 500")
		time.Sleep(time.Minute)
		c.Failed("answered 500")
		require.Empty(t, c.Conditions(), "two calls may have been about one message")
		c.Failed("answered 503")
		time.Sleep(20 * time.Second)
		require.Equal(t, []operate.Condition{{
			Place: pipeline.Endpoint{Kind: pipeline.KindServer, Name: "https://mill.example"},
			Check: operate.Check{
				Name: "the mill", Level: operate.Warn, Remedy: "ask who runs it",
				Text: "no call has succeeded since 2000-01-01T00:00:00Z, for 1m20s, and 3 have failed; the last one, 20s ago: answered 503; each sack waits",
			},
		}}, c.Conditions())
		time.Sleep(time.Minute)
		const quiet = "; each sack waits; none has been made since, so nobody knows whether it works now"
		require.Contains(t, c.Conditions()[0].Text, ", 1m20s ago: answered 503"+quiet)
		ended := c.Began(t.Context())
		require.NotContains(t, c.Conditions()[0].Text, quiet, "the call that runs finds out")
		ended()
		c.Unreached("no such host")
		require.Equal(t, "correct its address in the settings, or let this machine reach it: doctor connects to it and says what is wrong", c.Conditions()[0].Remedy)
		c.Failed("answered 503")
		require.Equal(t, "ask who runs it", c.ToDo())
		c.Answered()
		require.Equal(t, operate.OK, c.Conditions()[0].Level)
		require.Equal(t, "answered 503", c.Last())
		c.Failed("answered 500")
		require.Equal(t, operate.OK, c.Conditions()[0].Level, "they count from the last one that succeeded")
	})
}

// A limit below a second is compared with a wait below a second.
func TestCallsThatHangForLessThanASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &operate.Calls{Name: "the mill"}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		defer c.Began(ctx)()
		time.Sleep(300 * time.Millisecond)
		require.Contains(t, c.Conditions()[0].Text, "the longest has waited 300ms of 500ms")
	})
}

// A server that takes calls and does not answer them looks like one that works until their time is over, so it is a
// warning before that. A few slow calls among many are none.
func TestCallsThatHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &operate.Calls{Name: "the mill"}
		began := func() func() {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			ended := c.Began(ctx)
			return func() { ended(); cancel() }
		}
		first, second := began(), began()
		time.Sleep(15 * time.Second)
		require.Empty(t, c.Conditions(), "half of their time is normal")
		time.Sleep(13 * time.Second)
		third := began()
		slow := operate.Condition{Check: operate.Check{
			Name: "the mill", Level: operate.Warn, Remedy: "ask who runs it; a call without an answer in its time has failed",
			Text: "2 of 3 calls in flight: no answer yet for more than half of the time that a call may take; the longest has waited 28s of 30s",
		}}
		require.Equal(t, []operate.Condition{slow}, c.Conditions(), "before the first answer")
		first()
		third()
		c.Answered()
		require.Equal(t, operate.Warn, c.Conditions()[0].Level, "the one that is left hangs")
		others := []func(){began(), began(), began()}
		require.Equal(t, operate.Warn, c.Conditions()[0].Level, "a quarter of them")
		others = append(others, began())
		require.Equal(t, operate.OK, c.Conditions()[0].Level, "most of them are young")
		for _, ended := range others {
			ended()
		}
		second()
		require.Equal(t, operate.OK, c.Conditions()[0].Level)

		hanging := began()
		for range 3 {
			c.Failed("answered 500")
		}
		time.Sleep(16 * time.Second)
		require.Len(t, c.Conditions(), 2, "each cause is told")
		hanging()
		c.Answered()
		ended := c.Began(t.Context())
		time.Sleep(time.Hour)
		require.Equal(t, operate.OK, c.Conditions()[0].Level, "a call without a deadline may take any time")
		ended()
	})
}
