package web_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// The check says what the start would say.
func TestChecksOfDescriptors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		descriptors int
		limited     bool
		streams     int
		connections int
		level       operate.Level
		text        string
	}{
		"no limit":             {0, false, 0, 0, operate.OK, "enough for 20000 streams"},
		"enough":               {1 << 20, true, 0, 0, operate.OK, "enough for 20000 streams"},
		"few":                  {1024, true, 0, 0, operate.Warn, "fewer than the usual 20000"},
		"few were asked for":   {1024, true, 100, 0, operate.OK, "enough for 100 streams"},
		"too many streams":     {1024, true, 513, 0, operate.Fail, "plugins.web.max_streams is 513, and the limit of file descriptors (1024) leaves 512"},
		"too many connections": {1024, true, 0, 600, operate.Fail, "plugins.web.max_connections is 600"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tokens, streams := token.New(), sse.New()
			p := web.New(tokens, streams)
			p.SetDescriptors(tc.descriptors, tc.limited)
			cfg, _ := p.Settings().(*web.Config)
			cfg.MaxStreams, cfg.MaxConnections = tc.streams, tc.connections
			reg, err := pipeline.NewRegistry(pipeline.Env{}, tokens, streams, p)
			require.NoError(t, err)
			p.Handle("GET /events", http.NotFoundHandler(), web.Stream())
			d := operate.Diagnose(t.Context(), operate.Examinations(reg), operate.CheckLimit, nil)
			require.Len(t, d.Checks, 1)
			require.Equal(t, "web descriptors", d.Checks[0].Name)
			require.Equal(t, tc.level, d.Checks[0].Level)
			require.Contains(t, d.Checks[0].Text, tc.text)
		})
	}
}

// A server without handlers does not listen, and one without streams needs few descriptors.
func TestDescriptorsAreForStreams(t *testing.T) {
	t.Parallel()
	tokens, streams := token.New(), sse.New()
	p := web.New(tokens, streams)
	p.SetDescriptors(1024, true)
	reg, err := pipeline.NewRegistry(pipeline.Env{}, tokens, streams, p)
	require.NoError(t, err)
	diagnose := func() []operate.Check {
		return operate.Diagnose(t.Context(), operate.Examinations(reg), operate.CheckLimit, nil).Checks
	}
	require.Empty(t, diagnose())
	p.Handle("POST /orders", http.NotFoundHandler())
	require.Equal(t, []operate.Check{{Name: "web descriptors", Level: operate.OK, Text: "they are enough, because no plugin serves streams"}}, diagnose())
	p.Handle("GET /events", http.NotFoundHandler(), web.Stream())
	require.Equal(t, operate.Warn, diagnose()[0].Level)
}
