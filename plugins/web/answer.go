package web

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"html/template"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/sse"
)

const defaultRetryAfter = 5 * time.Second

// Refusal is an answer other than success.
type Refusal struct {
	Status  int
	Word    string // for programs: lower case with underscores
	Message string // for a person
	// RetryAfter is for 429 and 503, which are passing refusals. Zero: 5s.
	RetryAfter time.Duration
}

// Refuse writes the refusal as JSON. A passing refusal of a request for a stream is a stream with
// the event busy, because a browser never connects again after another status.
func Refuse(w http.ResponseWriter, r *http.Request, refusal Refusal) {
	if refusal.Status == http.StatusTooManyRequests || refusal.Status == http.StatusServiceUnavailable {
		if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
			sse.Busy(w, refusal.Word)
			return
		}
		if refusal.RetryAfter <= 0 {
			refusal.RetryAfter = defaultRetryAfter
		}
		w.Header().Set("Retry-After", strconv.Itoa(int(max(1, refusal.RetryAfter.Round(time.Second).Seconds()))))
	}
	if refusal.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(refusal.Status)
	// A client that is gone needs no answer.
	_ = json.NewEncoder(w).Encode(map[string]string{"error": refusal.Word, "message": refusal.Message})
}

// page is what a template gets.
type page struct {
	Nonce string // for the attribute nonce of script and style
	Data  any
}

// Page writes the page of a template. The template gets .Data, and .Nonce: only scripts and styles
// with this nonce run. The page may load and connect to its own origin alone, and no other page can
// frame it. It may also load images from the origins in images, such as https://shop.example, which must
// come from the settings, because they become a part of the policy.
func (p *Plugin) Page(w http.ResponseWriter, r *http.Request, t *template.Template, data any, images ...string) {
	nonce := rand.Text()
	var text bytes.Buffer
	if err := t.Execute(&text, page{nonce, data}); err != nil {
		p.log.ErrorContext(r.Context(), "page not made", slog.String("path", r.URL.Path), logs.Err(err))
		Refuse(w, r, internalError())
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+
		"'; connect-src 'self'; img-src "+strings.Join(append([]string{"'self'"}, images...), " ")+"; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	_, _ = w.Write(text.Bytes()) // a client that is gone needs no answer
}

func internalError() Refusal {
	return Refusal{Status: http.StatusInternalServerError, Word: "internal", Message: "an error of the server; it is in its log"}
}

// setSecurityHeaders sets those of every answer.
func setSecurityHeaders(w http.ResponseWriter) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
}
