package sse

import (
	_ "embed" // the module
	"html/template"
)

//go:embed stream.js
var script string

// Module returns the ES module stream.js, which follows a stream in a browser.
func Module() string { return script }

// AddModule makes the module a template with the name stream.js. A page includes it at the start of
// its own module, so that the security policy of the page covers it and no second request can fail:
//
//	<script type="module" nonce="{{.Nonce}}">
//	{{template "stream.js"}}
func AddModule(t *template.Template) *template.Template {
	template.Must(t.New("stream.js").Parse(script))
	return t
}
