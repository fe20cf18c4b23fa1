package simulator

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

const maxBody = 64 << 10

const lookupPath = "/v1/charges/"

type kind uint8

const (
	kindCharged kind = iota
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
	return [kinds]string{"charged", "replayed", "failed", "timed_out", "reset", "silent", "rejected", "throttled",
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

	path := r.URL.Path
	if strings.HasPrefix(path, "/_sim/") {
		s.serveControl(w, r, j)
		return
	}
	if key := keyOf(r); validKey(key) {
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
	if r.Method == http.MethodPost {
		for _, t := range promotiontype.All() {
			if path == t.Operation.Path {
				s.charge(w, r, j, f, t)
				return
			}
		}
	}
	if key, ok := strings.CutPrefix(path, lookupPath); ok && r.Method == http.MethodGet {
		s.lookup(w, r, j, f, key)
		return
	}
	s.refuse(w, kindInvalid, http.StatusNotFound, "no_such_operation", "the API has no such operation")
}

// keyOf returns the idempotency key of a charge or a lookup; empty or wrong for any other request.
func keyOf(r *http.Request) string {
	if key, ok := strings.CutPrefix(r.URL.Path, lookupPath); ok {
		return key
	}
	return r.Header.Get("Idempotency-Key")
}

func (s *Server) authorized(r *http.Request) bool {
	if s.cfg.Token.IsZero() {
		return true
	}
	got, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(got), []byte(s.token.Value(r.Context()))) == 1
}

func (s *Server) charge(w http.ResponseWriter, r *http.Request, j *journal, f *Faults, t promotiontype.Type) {
	key := r.Header.Get("Idempotency-Key")
	if !validKey(key) {
		s.refuse(w, kindInvalid, http.StatusBadRequest, "bad_idempotency_key", "Idempotency-Key must be <TYPE>:<promotionId>:<targetId>")
		return
	}
	o, err := readOrder(w, r, t)
	if err != nil {
		s.refuse(w, kindInvalid, http.StatusBadRequest, "bad_request", err.Error())
		return
	}
	if s.poisoned(w, f.poison(key), false) {
		return
	}
	c := j.claim(key, o.Hash, s.cfg.Now(), f.rejects(key))
	switch c.state {
	case busy:
		s.refuse(w, kindInFlight, http.StatusConflict, "in_flight", "a request with this key is in flight")
		return
	case reused:
		s.refuse(w, kindKeyReused, http.StatusUnprocessableEntity, "key_reused", "this key was used with another body")
		return
	case rejected:
		s.refuse(w, kindRejected, http.StatusUnprocessableEntity, "limit_exceeded", "the target can't be paid")
		return
	}
	fate := f.fate(key, c.attempt, 0)
	ok := s.spend(fate.latency)
	if c.state == fresh {
		if ok && (fate.outcome == charge || fate.outcome == timeout || fate.outcome == reset) {
			c.number, err = j.execute(key, o, s.cfg.Now())
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
		s.counts[kindCharged].Add(1)
	}
	s.paid(w, r, j, key, c.number)
}

// poisoned answers a request of a poisoned key, and charges nothing.
func (s *Server) poisoned(w http.ResponseWriter, p poison, lookup bool) bool {
	switch {
	case p == wholesome, lookup && p != goneLookup && p != proxiedLookup:
		return false
	case lookup && p == proxiedLookup:
		s.proxied(w, http.StatusGone)
	case lookup:
		s.refuse(w, kindPoisoned, http.StatusGone, "gone", "lookups of this key are gone")
	case p == noMember:
		s.refuse(w, kindPoisoned, http.StatusNotFound, "member_not_found", "no such member")
	case p == blockedMember:
		s.refuse(w, kindPoisoned, http.StatusForbidden, "member_blocked", "the member is blocked")
	case p == forbidden:
		s.refuse(w, kindPoisoned, http.StatusForbidden, "forbidden", "the caller may not do this")
	case p == proxied:
		s.proxied(w, http.StatusForbidden)
	case p == throttledAlways:
		w.Header().Set("Retry-After", "60")
		s.refuse(w, kindPoisoned, http.StatusTooManyRequests, "throttled", "too many requests for this member")
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
	if !validKey(key) {
		s.refuse(w, kindInvalid, http.StatusBadRequest, "bad_idempotency_key", "the key must be <TYPE>:<promotionId>:<targetId>")
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
		s.refuse(w, kindLookupMissing, http.StatusNotFound, "charge_not_found", "no charge with this key")
	default:
		s.counts[kindLookupFound].Add(1)
		s.paid(w, r, j, key, c.number)
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

func (s *Server) paid(w http.ResponseWriter, r *http.Request, j *journal, key string, number uint64) {
	if r.Context().Err() == nil { // its caller has not given up
		j.answers(key)
	}
	s.write(w, http.StatusOK, fmt.Appendf(nil, `{"transactionKey":%q,"idempotencyKey":%q}`, j.transaction(number), key))
}

// refuse answers with the Error of openapi.yaml.
func (s *Server) refuse(w http.ResponseWriter, k kind, status int, code, message string) {
	s.counts[k].Add(1)
	b, _ := json.Marshal(map[string]string{"code": code, "message": message})
	s.write(w, status, b)
}

func (s *Server) write(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
	_ = http.NewResponseController(w).Flush() // Stop cuts connections
}

func readOrder(w http.ResponseWriter, r *http.Request, t promotiontype.Type) (order, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return order{}, err
	}
	p, err := t.Decode(raw)
	if err != nil {
		return order{}, fmt.Errorf("the body has not the form of %s: %w", t.Operation.Name, err)
	}
	sum := sha256.Sum256(raw)
	return order{t.Name, p.Promotion, p.Summary, p.Target, p.Value, bodyHash(sum[:len(bodyHash{})])}, nil
}

// keyPattern is the pattern of IdempotencyKey in openapi.yaml.
var keyPattern = regexp.MustCompile(`^[A-Z][A-Z0-9_]*:[1-9][0-9]*:[1-9][0-9]*$`)

func validKey(key string) bool { return len(key) <= 128 && keyPattern.MatchString(key) }
