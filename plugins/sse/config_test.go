package sse_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/sse"
)

func TestTheHeartbeatIsASetting(t *testing.T) {
	for _, wrong := range []time.Duration{0, 999 * time.Millisecond, time.Minute + 1} {
		require.ErrorContains(t, (&sse.Config{Heartbeat: wrong}).Validate(), "heartbeat")
	}
	synctest.Test(t, func(t *testing.T) {
		r := newHub(t)
		require.Equal(t, 35*time.Second, r.plugin.Silence())
		c, ok := r.plugin.Settings().(*sse.Config)
		require.True(t, ok)
		require.NoError(t, c.Validate())
		c.Heartbeat = 3 * time.Second
		require.Equal(t, 11*time.Second, r.plugin.Silence())
		r.start()
		defer r.stop()
		client, s := r.connect()
		time.Sleep(30 * time.Second)
		client.Close("done")
		require.NotZero(t, s.end())
		require.InDelta(t, 10, s.reader.Heartbeats, 1)
	})
}
