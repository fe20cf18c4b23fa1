package web

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/plugins/web/signin"
)

const maxBody = 64 << 10 // bytes of a request

// recorder keeps the status and the size of an answer. http.ResponseController finds the writer in
// it.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
	user   string     // for the log
	span   trace.Span // of the request; nil: it has none
}

// context is that of a request with its span, so that the log has the trace.
func (w *recorder) context(r *http.Request) context.Context {
	if w.span == nil {
		return r.Context()
	}
	return trace.ContextWithSpan(r.Context(), w.span)
}

func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// serve answers every request of the server.
func (p *Plugin) serve(rw http.ResponseWriter, r *http.Request) {
	begin, w := time.Now(), &recorder{ResponseWriter: rw}
	if r.ContentLength == 0 {
		_ = http.NewResponseController(w).SetWriteDeadline(begin.Add(p.writeTimeout)) // net/http supports it
	}
	setSecurityHeaders(w)
	aborted := p.contained(w, r)
	pattern := r.Pattern
	if p.mounts[pattern] == nil {
		pattern = noPattern
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	endSpan(w.span, w.status, aborted)
	p.metrics.requests.WithLabelValues(pattern, class(w.status)).Inc()
	if m := p.mounts[pattern]; m != nil && !m.stream {
		p.metrics.duration.WithLabelValues(pattern).Observe(time.Since(begin).Seconds())
	}
	// Without the query: it may contain a token.
	line := []slog.Attr{
		slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", w.status),
		slog.Duration("took", time.Since(begin)), slog.Int64("bytes", w.bytes),
	}
	if w.user != "" {
		line = append(line, slog.String("user", w.user))
	}
	p.log.LogAttrs(w.context(r), slog.LevelDebug, "request", line...)
	if aborted {
		panic(http.ErrAbortHandler) // the client must not take the answer as complete
	}
}

// contained answers a request and recovers from a panic of its handler. It returns true if a part
// of the answer was sent before.
func (p *Plugin) contained(w *recorder, r *http.Request) (aborted bool) {
	defer func() {
		v := recover()
		switch {
		case v == nil:
			return
		case v != http.ErrAbortHandler: //nolint:errorlint // it is this value
			p.metrics.panics.Inc()
			p.log.ErrorContext(w.context(r), "http handler panicked", slog.String("path", r.URL.Path),
				slog.String("detail", fmt.Sprint(v)), slog.String("stack", string(debug.Stack())))
		}
		if v == http.ErrAbortHandler || w.status != 0 { //nolint:errorlint // it is this value
			aborted = true
			return
		}
		Refuse(w, r, internalError())
	}()
	p.route(w, r)
	return false
}

func (p *Plugin) route(w *recorder, r *http.Request) {
	if isPreflight(r) {
		p.preflight(w, r)
		return
	}
	h, pattern := p.mux.Handler(r)
	if m := p.mounts[pattern]; m != nil {
		r.Pattern = pattern // of the request that serve has
		r, w.span = p.startSpan(m, r)
		p.mux.ServeHTTP(w, r)
		return
	}
	// The body of ServeMux is not JSON. Its header Allow is kept.
	missing := &recorder{ResponseWriter: &headerOnly{w.Header()}}
	h.ServeHTTP(missing, r)
	if missing.status == http.StatusMethodNotAllowed {
		Refuse(w, r, methodNotAllowed())
		return
	}
	w.Header().Del("Location") // of a path such as /a/./b, whose clean form has no handler either
	Refuse(w, r, Refusal{Status: http.StatusNotFound, Word: "not_found", Message: http.StatusText(http.StatusNotFound)})
}

func methodNotAllowed() Refusal {
	return Refusal{Status: http.StatusMethodNotAllowed, Word: "method_not_allowed", Message: http.StatusText(http.StatusMethodNotAllowed)}
}

// headerOnly is a response without a body.
type headerOnly struct{ header http.Header }

func (h *headerOnly) Header() http.Header         { return h.header }
func (h *headerOnly) WriteHeader(int)             {}
func (h *headerOnly) Write(b []byte) (int, error) { return len(b), nil }

// guard answers for a mount: it refuses, or calls the handler with a user and limits.
func (p *Plugin) guard(m *mount) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse := func(reason string, refusal Refusal) {
			p.metrics.refused.WithLabelValues(reason).Inc()
			Refuse(w, r, refusal)
		}
		if !p.permits(m, w, r) {
			refuse(reasonOrigin, refusedOrigin())
			return
		}
		if r.Method == http.MethodHead && m.getHasEffect() {
			w.Header().Set("Allow", http.MethodGet)
			Refuse(w, r, methodNotAllowed())
			return
		}
		if p.server.draining.Load() {
			w.Header().Set("Connection", "close")
			refuse(reasonDraining, Refusal{Status: http.StatusServiceUnavailable, Word: reasonDraining, Message: "the server stops; connect again"})
			return
		}
		v, err := p.visitor(r)
		if bad, ok := errors.AsType[*signin.BadUserError](err); ok && m.users {
			refuse(reasonBadUser, Refusal{Status: http.StatusBadRequest, Word: reasonBadUser, Message: bad.Error()})
			return
		}
		if err != nil && m.users {
			refuse(reasonUnavailable, Refusal{Status: http.StatusServiceUnavailable, Word: reasonUnavailable, Message: "the keys of the sign-in are unavailable"})
			return
		}
		if !v.known && m.users {
			refuse(reasonNoUser, Refusal{Status: http.StatusUnauthorized, Word: reasonNoUser, Message: "sign in first"})
			return
		}
		logged := func(user string) {
			if outer, ok := w.(*recorder); ok {
				outer.user = p.pseudonym(user)
			}
		}
		if v.known {
			r = r.WithContext(context.WithValue(r.Context(), userKey{}, v.user))
			logged(v.user.ID)
		}
		if r.ContentLength != 0 {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		}
		if !m.stream {
			m.handler.ServeHTTP(w, r)
			return
		}
		visitor := v.slot()
		if !v.known && m.subject != nil {
			ctx, subject := m.subject(r)
			r = r.WithContext(ctx)
			if subject != "" {
				visitor = userSlot(subject)
				logged(subject)
			}
		}
		if reason := p.slots.takeSlot(visitor, p.maxStreams, p.config.MaxStreamsPerUser); reason != "" {
			status := http.StatusServiceUnavailable
			if reason == reasonTooMany { // the visitor has other streams
				status = http.StatusTooManyRequests
			} else if m.refused != nil {
				m.refused(r)
			}
			refuse(reason, Refusal{Status: status, Word: reason, Message: "too many streams are open"})
			return
		}
		p.metrics.streams.Inc()
		defer func() {
			p.metrics.streams.Dec()
			p.slots.release(visitor)
		}()
		// A stream sets a deadline per write itself.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // net/http supports it
		m.handler.ServeHTTP(w, r)
	})
}

// pseudonym names a user in the log of this process.
func (p *Plugin) pseudonym(user string) string {
	h := hmac.New(sha256.New, p.logKey)
	h.Write([]byte(user))
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// slots counts the open streams.
type slots struct {
	mu   sync.Mutex
	all  int
	open map[string]int // per visitor
}

// takeSlot returns the reason if the limit of the process or of the visitor is reached.
func (s *slots) takeSlot(visitor string, limit, perVisitor int) (reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.all >= limit:
		return reasonFull
	case s.open[visitor] >= perVisitor:
		return reasonTooMany
	}
	s.all++
	s.open[visitor]++
	return ""
}

func (s *slots) release(visitor string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.open[visitor]--; s.open[visitor] == 0 {
		delete(s.open, visitor)
	}
}
