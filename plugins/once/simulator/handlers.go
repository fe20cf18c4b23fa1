package simulator

import (
	"cmp"
	"crypto/subtle"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const maxBody = 64 << 10

type kind uint8

const (
	kindExecuted kind = iota
	kindReplayed
	kindFailed
	kindTimedOut
	kindReset
	kindSilent
	kindRejected
	kindThrottled
	kindUnauthorized
	kindInFlight
	kindKeyReused
	kindInvalid
	kindLookupFound
	kindLookupMissing
	kindPoisoned
	kinds
)

func (k kind) String() string {
	return [kinds]string{"executed", "replayed", "failed", "timed_out", "reset", "silent", "rejected", "throttled",
		"unauthorized", "in_flight", "key_reused", "invalid", "lookup_found", "lookup_missing", "poisoned"}[k]
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.RLock()
	if s.stopping {
		s.mu.RUnlock()
		panic(http.ErrAbortHandler) // cuts the connection
	}
	s.requests.Add(1)
	j := s.journal
	s.mu.RUnlock()
	defer s.requests.Done()

	if strings.HasPrefix(r.URL.Path, "/_sim/") {
		s.serveControl(w, r, j)
		return
	}
	var check Check
	key, isLookup := s.api.Lookup(r)
	if !isLookup {
		key, check = s.api.Operation(r)
	}
	if (isLookup || check != nil) && s.api.ValidKey(key) {
		ends := j.callBegins(r.Context(), key)
		defer ends()
	}
	f := s.faults.Load()
	if f.Silence {
		s.counts[kindSilent].Add(1)
		_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxBody)) // net/http then sees a hang-up
		s.stayQuiet(r)
	}
	if f.Unauthorized || !s.authorized(r) {
		s.refuse(w, kindUnauthorized, http.StatusUnauthorized, "unauthorized", "the credential is not valid")
		return
	}
	if f.PerSecond > 0 && !s.pace.admits(f.PerSecond, time.Now()) {
		w.Header().Set("Retry-After", "1")
		s.refuse(w, kindThrottled, http.StatusTooManyRequests, "throttled", "too many requests in this second")
		return
	}
	switch {
	case isLookup:
		s.lookup(w, r, j, f, key)
	case check != nil:
		s.request(w, r, j, f, key, check)
	default:
		s.refuse(w, kindInvalid, http.StatusNotFound, "no_such_operation", "the API has no such operation")
	}
}

func (s *Server) authorized(r *http.Request) bool {
	if s.cfg.Token.IsZero() {
		return true
	}
	got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(got), []byte(s.token.Value(r.Context()))) == 1
}

func (s *Server) request(w http.ResponseWriter, r *http.Request, j *journal, f *Faults, key string, check Check) {
	if !s.api.ValidKey(key) {
		s.refuse(w, kindInvalid, http.StatusBadRequest, "bad_idempotency_key", s.api.KeyForm)
		return
	}
	e, err := readRequest(w, r, key, check)
	if err != nil {
		s.refuse(w, kindInvalid, http.StatusBadRequest, "bad_request", err.Error())
		return
	}
	if s.poisoned(w, f.poison(key), false) {
		return
	}
	c := j.claim(key, e.hash, s.cfg.Now(), f.rejects(key))
	switch c.state {
	case busy:
		s.refuse(w, kindInFlight, http.StatusConflict, "in_flight", "a request with this key is in flight")
		return
	case reused:
		s.refuse(w, kindKeyReused, http.StatusUnprocessableEntity, "key_reused", "this key was used with another body")
		return
	case rejected:
		s.refuseAs(w, kindRejected, http.StatusUnprocessableEntity, s.api.Rejected)
		return
	}
	fate := f.fate(key, c.attempt, 0)
	ok := s.spend(fate.latency)
	if c.state == fresh {
		if ok && (fate.outcome == succeed || fate.outcome == timeout || fate.outcome == reset) {
			c.receipt, err = j.execute(e, s.cfg.Now())
		}
		j.release(key)
	}
	switch {
	case !ok:
		panic(http.ErrAbortHandler)
	case err != nil:
		s.fail(err)
		s.refuse(w, kindFailed, http.StatusInternalServerError, "broken_journal", "the journal can't be written")
		return
	}
	if s.breaks(w, r, f, fate.outcome) {
		return
	}
	if c.state == replay {
		w.Header()["Idempotent-Replayed"] = []string{"true"}
		s.counts[kindReplayed].Add(1)
	} else {
		s.counts[kindExecuted].Add(1)
	}
	s.done(w, r, j, key, c.receipt)
}

// poisoned answers a request of a poisoned key, and executes nothing.
func (s *Server) poisoned(w http.ResponseWriter, p poison, lookup bool) bool {
	switch {
	case p == wholesome, lookup && p != goneLookup && p != proxiedLookup:
		return false
	case lookup && p == proxiedLookup:
		s.proxied(w, http.StatusGone)
	case lookup:
		s.refuse(w, kindPoisoned, http.StatusGone, "gone", "lookups of this key are gone")
	case p == absent:
		s.refuseAs(w, kindPoisoned, http.StatusNotFound, s.api.Absent)
	case p == blocked:
		s.refuseAs(w, kindPoisoned, http.StatusForbidden, s.api.Blocked)
	case p == forbidden:
		s.refuse(w, kindPoisoned, http.StatusForbidden, "forbidden", "the caller may not do this")
	case p == proxied:
		s.proxied(w, http.StatusForbidden)
	case p == throttledAlways:
		w.Header().Set("Retry-After", "60")
		s.refuse(w, kindPoisoned, http.StatusTooManyRequests, "throttled", "too many requests for this key")
	default: // goneLookup and proxiedLookup
		s.refuse(w, kindPoisoned, http.StatusInternalServerError, "internal", "something broke")
	}
	return true
}

func (s *Server) proxied(w http.ResponseWriter, status int) {
	s.counts[kindPoisoned].Add(1)
	http.Error(w, "<html>"+http.StatusText(status)+"</html>", status)
}

func (s *Server) lookup(w http.ResponseWriter, r *http.Request, j *journal, f *Faults, key string) {
	if !s.api.ValidKey(key) {
		s.refuse(w, kindInvalid, http.StatusBadRequest, "bad_idempotency_key", s.api.KeyForm)
		return
	}
	if s.poisoned(w, f.poison(key), true) {
		return
	}
	c := j.lookup(key, s.cfg.Now())
	fate := f.fate(key, c.attempt, saltLookup)
	if !s.spend(fate.latency) {
		panic(http.ErrAbortHandler)
	}
	switch {
	case s.breaks(w, r, f, fate.outcome):
	case c.state == busy:
		s.refuse(w, kindInFlight, http.StatusConflict, "in_flight", "a request with this key is in flight")
	case c.state == fresh:
		s.refuseAs(w, kindLookupMissing, http.StatusNotFound, s.api.Missing)
	default:
		s.counts[kindLookupFound].Add(1)
		s.done(w, r, j, key, c.receipt)
	}
}

// spend waits for the latency, also without its caller. It is false when the server is killed.
func (s *Server) spend(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.kill:
		return false
	}
}

func (s *Server) breaks(w http.ResponseWriter, r *http.Request, f *Faults, o outcome) bool {
	switch o {
	case throttle:
		w.Header().Set("Retry-After", strconv.FormatInt(f.retryAfterSeconds(), 10))
		s.refuse(w, kindThrottled, http.StatusTooManyRequests, "throttled", "too many requests")
	case fail:
		s.refuse(w, kindFailed, http.StatusInternalServerError, "internal", "something broke")
	case timeout:
		s.counts[kindTimedOut].Add(1)
		s.stayQuiet(r)
	case reset:
		s.counts[kindReset].Add(1)
		cut(w)
	default:
		return false
	}
	return true
}

// stayQuiet never answers. It ends with the connection, or with the server.
func (s *Server) stayQuiet(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-s.quiet.Done():
	}
	panic(http.ErrAbortHandler)
}

func cut(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // a reset instead of an orderly end
	}
	c.Close()
}

func (s *Server) done(w http.ResponseWriter, r *http.Request, j *journal, key, receipt string) {
	if r.Context().Err() == nil { // its caller has not given up
		j.answers(key)
	}
	s.write(w, http.StatusOK, s.api.Done(receipt, key))
}

func (s *Server) refuse(w http.ResponseWriter, k kind, status int, code, message string) {
	s.refuseAs(w, k, status, Refusal{code, message})
}

func (s *Server) refuseAs(w http.ResponseWriter, k kind, status int, r Refusal) {
	s.counts[k].Add(1)
	b, _ := json.Marshal(r) // texts always can be
	s.write(w, status, b)
}

func (s *Server) write(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
	_ = http.NewResponseController(w).Flush() // Stop cuts connections
}

func readRequest(w http.ResponseWriter, r *http.Request, key string, check Check) (execution, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return execution{}, err
	}
	o, err := check(raw)
	if err != nil {
		return execution{}, err
	}
	return execution{key: key, path: r.URL.Path, body: string(raw), hash: hashOf(raw), subject: cmp.Or(o.Subject, key), sum: o.Sum}, nil
}
