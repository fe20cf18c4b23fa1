package console_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/plugins/console"
)

const traced = "4bf92f3577b34da6a3ce929d0e0e4736"

// showing has a record with cells of traces: an id, a header with one, and what somebody else has written as one.
func showing(hostile string) contributor {
	inHeader := pages.Word("00-" + traced + "-00f067aa0ba902b7-01")
	inHeader.Trace, _ = pipeline.TraceOf(inHeader.Text)
	return page(loading("thing", pages.Record{Fields: pages.Stats{
		{Name: "Trace", Cell: pages.Trace(traced)}, {Name: "Header", Cell: inHeader}, {Name: "Hostile", Cell: pages.Trace(hostile)},
	}}, nil))
}

func TestIdsOfTracesAreLinks(t *testing.T) {
	t.Parallel()
	const address = "https://tempo.example.com/explore?trace={trace}&from=now-1d"
	for _, hostile := range []string{"", "javascript:alert(1)", strings.ToUpper(traced), traced + "0", traced[1:], traced[1:] + "/", traced[1:] + "\n", traced + "\n", "../" + traced[3:], strings.Repeat("é", 32)} {
		r := start(t, func(c *console.Config) { c.TraceURL = address }, showing(hostile))
		text := r.get("/tried")
		const link = `<a href="https://tempo.example.com/explore?trace=` + traced + `&amp;from=now-1d" rel="noreferrer">`
		require.Contains(t, text, link+traced+"</a>")
		require.Contains(t, text, link+"00-"+traced+"-00f067aa0ba902b7-01</a>")
		require.Equal(t, 2, strings.Count(text, "tempo.example.com"), "%q", hostile)
		_, plain := r.do(http.MethodGet, "/tried", "", "Accept: text/plain")
		require.NotContains(t, plain, "tempo.example.com")
	}
	text := start(t, nil, showing("")).get("/tried")
	require.Contains(t, text, "<dd>"+traced+"</dd>")
}

func TestTheAddressOfTraces(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"", "https://tempo.example.com/trace/{trace}", "http://127.0.0.1:16686/trace/{trace}", "https://x.example/a?b={trace}#c", "https://x.example/#/trace/{trace}"} {
		c := console.DefaultConfig()
		c.TraceURL = good
		require.NoError(t, c.Validate(), good)
	}
	for _, bad := range []string{
		"tempo", "/trace/{trace}", "https://x.example/trace", "https://x.example/{trace}/{trace}", "ftp://x.example/{trace}", "javascript:alert('{trace}')",
		"https:///{trace}", "https://ann:secret@x.example/{trace}", "https://x.example/{trace_id}", "https://x.example/{id}/{trace}", "//x.example/{trace}", "https://x.example:port/{trace}",
	} {
		c := console.DefaultConfig()
		c.TraceURL = bad
		require.ErrorContains(t, c.Validate(), "trace_url: must be the address of a page with {trace} once, such as https://tempo.example.com/trace/{trace}", bad)
	}
}
