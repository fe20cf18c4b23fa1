// Package shop answers the ticket shop. It verifies entry tokens and takes the results of
// purchases.
package shop

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/broker"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// Shop answers the requests of ticket shops. Build it with New.
type Shop struct {
	rooms    *room.Store
	tokens   *token.Plugin
	log      *slog.Logger
	sampled  *logs.Throttle
	shops    *web.NamedTokens
	labels   *topevents.Labels
	late     *prometheus.CounterVec
	requests *prometheus.CounterVec
}

const warnEvery = 10 * time.Second

// The requests of a shop.
const (
	verify = "verify"
	extend = "extend"
	finish = "finish"
)

func requests() []string { return []string{verify, extend, finish} }

// New returns the shop's side of rooms. Each of the credentials opens it, and its key is the name of the
// shop, which find of an operator, the metrics and the log have; without one it refuses all requests.
// The process collects the metrics of the labels.
func New(rooms *room.Store, tokens *token.Plugin, events *topevents.Labels, credentials map[string]setting.Secret, log *slog.Logger) *Shop {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_room_" + name, Help: help}, labels)
	}
	s := &Shop{
		rooms: rooms, tokens: tokens, log: log, sampled: logs.NewThrottle(warnEvery), labels: events,
		shops: web.NewNamedTokens(func(name string) string { return "plugins.waitingroom.shop_tokens." + name }, log, credentials),
		late: counter("late_finish_total",
			"Sales that were reported after the end of their lease, by event (the 50 largest, else other) and answer: sold, conflict.", "event", "answer"),
		requests: counter("shop_requests_total", "Requests of shops, by name (empty: of none of shop_tokens), request (verify, extend, finish) and answer: ok, or the word of the refusal.", "shop", "request", "answer"),
	}
	events.Add(s.late, "sold", "conflict")
	for _, request := range requests() {
		s.requests.WithLabelValues("", request, "no_shop")
		for shop := range credentials {
			s.requests.WithLabelValues(shop, request, "ok")
			s.requests.WithLabelValues(shop, request, "unavailable")
		}
	}
	return s
}

// Register adds the metrics, and the addresses to the server.
func (s *Shop) Register(r *pipeline.Registry, server *web.Plugin) {
	r.Collect(s.late, s.requests)
	for _, request := range requests() {
		server.Handle("POST /events/{id}/entry/"+request, s.handler(request), web.ContinueTrace())
	}
}

// request is the body of all requests.
type request struct {
	Token  string `json:"token"`
	By     string `json:"by"`     // the session of the shop; finish: may be empty without verify
	Until  int64  `json:"until"`  // extend: requested end in ms of the server's clock
	Result string `json:"result"` // finish: sold or abandoned
}

// Entry is the answer to all requests.
type Entry struct {
	UserID string     `json:"userId"`
	JTI    string     `json:"jti"`
	Until  int64      `json:"until,omitempty"` // end of the lease in ms of the server's clock
	State  room.State `json:"state"`
}

func refusal(status int, word, message string) web.Refusal {
	return web.Refusal{Status: status, Word: word, Message: message}
}

// handler checks the credential, the body and the entry token of a request before it answers.
func (s *Shop) handler(name string) http.HandlerFunc {
	answer := map[string]func(context.Context, string, token.Claims, request) (room.Place, error){
		verify: s.verify, extend: s.extend, finish: s.finish,
	}[name]
	return func(w http.ResponseWriter, r *http.Request) {
		shop := s.shops.NameOf(r)
		refuse := func(w http.ResponseWriter, r *http.Request, refusal web.Refusal) {
			s.requests.WithLabelValues(shop, name, refusal.Word).Inc()
			s.log.DebugContext(r.Context(), "request of a shop refused", slog.String("shop", shop), slog.String("request", name), slog.String("answer", refusal.Word))
			web.Refuse(w, r, refusal)
		}
		if shop == "" {
			refuse(w, r, refusal(http.StatusUnauthorized, "no_shop", "present one of the shop tokens in the header Authorization"))
			return
		}
		event := r.PathValue("id")
		if !room.ValidEvent(event) {
			refuse(w, r, refusal(http.StatusBadRequest, "bad_event", "the id of the event is not valid"))
			return
		}
		var q request
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			refuse(w, r, refusal(http.StatusBadRequest, "bad_body", "the body is not a JSON object, or a field has another type"))
			return
		}
		// The lease decides, so the end of the token does not matter here.
		claims, err := s.tokens.Verify(broker.EntryAudience(event), q.Token)
		switch {
		case errors.Is(err, token.ErrAudience):
			refuse(w, r, refusal(http.StatusForbidden, "other_event", "the entry token is for another event"))
			return
		case err != nil && !errors.Is(err, token.ErrExpired), claims.Subject == "" || claims.ID == "":
			refuse(w, r, refusal(http.StatusUnauthorized, "forged", "the entry token is not one of this waiting room"))
			return
		}
		place, err := answer(room.WithShop(r.Context(), shop), event, claims, q)
		if err != nil {
			refuse(w, r, s.refusal(shop, err))
			return
		}
		s.requests.WithLabelValues(shop, name, "ok").Inc()
		s.log.DebugContext(r.Context(), "request of a shop done", slog.String("shop", shop), slog.String("request", name), slog.String("event", event),
			slog.String("lease", claims.ID), slog.String("session", q.By), slog.String("state", string(place.State)))
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		// A client that is gone needs no answer.
		_ = json.NewEncoder(w).Encode(Entry{UserID: claims.Subject, JTI: claims.ID, Until: place.Until, State: place.State})
	}
}

var (
	errSession = errors.New("by must name the session of the shop: 1 to 128 printable characters")
	errUntil   = errors.New("until must be the requested end of the turn in ms, counted from the until of the last answer")
	errResult  = errors.New("result must be sold or abandoned")
)

// refusal returns the answer to a request that failed.
func (s *Shop) refusal(shop string, err error) web.Refusal {
	switch {
	case errors.Is(err, errSession), errors.Is(err, errUntil), errors.Is(err, errResult):
		return refusal(http.StatusBadRequest, "bad_body", err.Error())
	case errors.Is(err, room.ErrUsed):
		return refusal(http.StatusConflict, "used",
			"another session has verified the entry token: repeat the request with its by, or let an operator remove the user (room kick)")
	case errors.Is(err, room.ErrUnverified):
		return refusal(http.StatusConflict, "not_verified", "no session has verified the entry token: send verify first")
	case errors.Is(err, room.ErrConflict):
		return refusal(http.StatusConflict, "conflict", "the lease has ended in another way, no slot is free, or the user has made all purchases that the event allows")
	case errors.Is(err, room.ErrEnded):
		return refusal(http.StatusGone, "ended", "the lease has ended")
	case errors.Is(err, room.ErrUnknown):
		return refusal(http.StatusNotFound, "unknown", "the event has no waiting room")
	}
	s.sampled.Warn(s.log, "request of the shop failed", slog.String("shop", shop), logs.Err(err))
	return refusal(http.StatusServiceUnavailable, "unavailable", "the waiting room is unavailable: try again")
}

func (s *Shop) verify(ctx context.Context, event string, c token.Claims, q request) (room.Place, error) {
	if !room.ValidUser(q.By) {
		return room.Place{}, errSession
	}
	return s.rooms.Verify(ctx, event, c.Subject, c.ID, q.By)
}

func (s *Shop) extend(ctx context.Context, event string, c token.Claims, q request) (room.Place, error) {
	switch {
	case !room.ValidUser(q.By):
		return room.Place{}, errSession
	case q.Until <= 0:
		return room.Place{}, errUntil
	}
	return s.rooms.Extend(ctx, event, c.Subject, c.ID, q.By, q.Until)
}

func (s *Shop) finish(ctx context.Context, event string, c token.Claims, q request) (room.Place, error) {
	sold := q.Result == "sold"
	if !sold && q.Result != "abandoned" {
		return room.Place{}, errResult
	}
	if q.By != "" && !room.ValidUser(q.By) {
		return room.Place{}, errSession
	}
	place, err := s.rooms.Finish(ctx, event, c.Subject, c.ID, q.By, sold)
	failpoint.Hit(failpoint.Finished)
	isLate := place.How == "late" || place.How == "late_lease"
	late := func(answer string) { s.late.WithLabelValues(s.labels.Name(event), answer).Inc() }
	// With too few replicas it has run, too, and is again when the shop repeats it.
	ran := err == nil || errors.Is(err, redis.ErrNotReplicated)
	switch {
	case ran && sold && isLate:
		late("sold")
	case errors.Is(err, room.ErrConflict) && sold && place.State != "": // the lease has ended
		late("conflict")
	}
	// A late sale was counted as expired or abandoned before. The lease that it ends is another one.
	switch {
	case ran && place.How == "late_lease":
		s.labels.Ended(event, string(room.Abandoned), 1)
	case ran && place.How != "again" && !isLate:
		s.labels.Ended(event, string(place.State), 1)
	}
	return place, err
}
