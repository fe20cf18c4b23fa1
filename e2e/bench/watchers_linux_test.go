package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

func TestAWatcherRefusesALostEvent(t *testing.T) {
	t.Parallel()
	chunk := func(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }
	sent := time.Now()
	of := func(number int) string {
		return fmt.Sprintf("id: %d\nevent: event\ndata: {\"data\":{%s0,%d,\"}}\n\n", number, stampPrefix, sent.UnixNano())
	}
	received := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk("retry: 1000\n\n") +
		chunk(of(1)) + chunk(of(2)[:30]) + chunk(of(2)[30:]) + chunk("event: heartbeat\ndata: {}\n\n")
	for _, perRead := range []int{1, 7, len(received)} {
		var out pipelinetest.Buffer
		w := watching{watchConfig: watchConfig{Deliveries: []int{2}}, delays: make([][]float64, 1), out: &out}
		c := &client{}
		for at := 0; at < len(received); at += perRead {
			part := received[at:min(len(received), at+perRead)]
			require.NoError(t, w.take(c, []byte(part), sent.Add(3*time.Millisecond)))
		}
		require.Contains(t, out.String(), `phase 0: {"p50_ms":3`)
		require.Equal(t, 1, w.open)
		require.ErrorContains(t, w.take(c, []byte(chunk(of(4))), sent), "received event 4 after 2")
		require.ErrorContains(t, w.take(&client{open: true}, []byte("0\r\n\r\n"), sent), "has ended")
	}
	w := watching{}
	require.ErrorContains(t, w.take(&client{}, []byte("HTTP/1.1 429 Too Many Requests\r\n\r\n"), sent), "429")
}

func TestAWatcherReportsTheTurnOfEachUser(t *testing.T) {
	t.Parallel()
	chunk := func(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }
	const head, promoted = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "event: promoted\ndata: {}\n\n"
	var out pipelinetest.Buffer
	w := watching{watchConfig: watchConfig{Room: crowdEvent, Deliveries: []int{2}}, out: &out}
	first, second, third := &client{number: 7}, &client{number: 8}, &client{number: 9}
	at := time.UnixMicro(1000)
	require.NoError(t, w.take(first, []byte(head+chunk("id: 1\nevent: connected\ndata: {}\n\n"+promoted)), at))
	require.NoError(t, w.take(first, []byte(chunk(promoted)), at), "with a later end")
	require.Empty(t, out.String())
	require.NoError(t, w.take(second, []byte(head+chunk(promoted)), at.Add(time.Millisecond)))
	require.Equal(t, phaseReport(0)+`[{"Client":7,"At":1000},{"Client":8,"At":2000}]`+"\n", out.String())
	require.ErrorContains(t, w.take(third, []byte(head+chunk(promoted)), at), "after the last phase")
}
