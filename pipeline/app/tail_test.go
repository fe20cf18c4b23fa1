package app

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// boxes is a transport without a Tailer.
type boxes struct{ *pipelinetest.Topics }

func (boxes) Name() string                      { return "boxes" }
func (boxes) Register(*pipeline.Registry) error { return nil }

func TestTailSaysWhichTransportCannotShowItsTopics(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"a transport without Tailer": {nil, `the messages of "orders" can't be shown: plugin boxes is a transport without app.Tailer`},
		"it is named":                {[]string{"--plugin", "boxes"}, "can't be shown"},
		"another is named":           {[]string{"--plugin", "letters"}, `no enabled transport has a topic or stream with the name "orders"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var errs bytes.Buffer
			code := Main(t.Context(), Options{Name: "shop", Plugins: []pipeline.Plugin{boxes{new(pipelinetest.Topics)}, letters{}},
				Args: append([]string{"tail", "orders"}, tt.args...), Stdout: io.Discard, Stderr: &errs})
			require.Equal(t, ExitUsage, code)
			require.Contains(t, errs.String(), tt.want)
		})
	}
}
