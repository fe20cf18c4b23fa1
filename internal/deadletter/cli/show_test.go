package cli

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/store"
)

// The ids are those of log lines and spans, so that a person can look for them.
func TestShowHasTheTrace(t *testing.T) {
	t.Parallel()
	const traceID, spanID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for parent, want := range map[string][2]string{
		"00-" + traceID + "-" + spanID + "-01":                  {"trace         " + traceID + ", span " + spanID + "\n", traceID},
		"00-" + traceID + "-" + spanID + "-00":                  {"trace         " + traceID + ", span " + spanID + "\n", traceID},
		"nonsense\n":                                            {`trace         "nonsense\n"` + "\n", ""},
		"00-00000000000000000000000000000000-" + spanID + "-01": {`trace         00-00000000000000000000000000000000-` + spanID + "-01\n", ""},
		"": {"", ""},
	} {
		shown := newShown(store.DeadLetter{TraceParent: parent}, nil)
		var out bytes.Buffer
		require.NoError(t, shown.write(&out))
		if want[0] == "" {
			require.NotContains(t, out.String(), "trace")
		}
		require.Contains(t, out.String(), want[0])
		text, err := json.Marshal(shown)
		require.NoError(t, err)
		var read struct {
			TraceID string `json:"trace_id"`
			SpanID  string `json:"span_id"`
		}
		require.NoError(t, json.Unmarshal(text, &read))
		require.Equal(t, want[1], read.TraceID)
		require.Equal(t, want[1] != "", read.SpanID == spanID)
	}
}
