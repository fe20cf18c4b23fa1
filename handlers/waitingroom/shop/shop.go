// Package shop answers the ticket shop. It verifies entry tokens and takes the results of
// purchases.
package shop

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/waitingroom/broker"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/failpoint"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// Shop answers the requests of ticket shops. Build it with New.
type Shop struct {
	rooms       *room.Rooms
	tokens      *token.Plugin
	log         *slog.Logger
	sampled     *pipeline.LogSampler
	credentials [][sha256.Size]byte
	late        *prometheus.CounterVec
}

const warnEvery = 10 * time.Second

// New returns the shop's side of rooms. Each of the credentials opens it; without one it refuses
// all requests.
func New(rooms *room.Rooms, tokens *token.Plugin, credentials []pipeline.Secret, log *slog.Logger) *Shop {
	s := &Shop{
		rooms: rooms, tokens: tokens, log: log, sampled: pipeline.NewLogSampler(warnEvery),
		late: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_room_late_finish_total", Help: "Sales that were reported after the end of their lease, by answer: sold, conflict.",
		}, []string{"answer"}),
	}
	for _, c := range credentials {
		s.credentials = append(s.credentials, sha256.Sum256([]byte(c.Reveal())))
	}
	for _, answer := range []string{"sold", "conflict"} {
		s.late.WithLabelValues(answer)
	}
	return s
}

// Register adds the metrics, and the addresses to the server.
func (s *Shop) Register(r *pipeline.Registry, server *web.Plugin) {
	r.Collect(s.late)
	server.Handle("POST /events/{id}/entry/verify", s.handler(s.verify))
	server.Handle("POST /events/{id}/entry/finish", s.handler(s.finish))
}

// request is the body of both requests.
type request struct {
	Token  string `json:"token"`
	By     string `json:"by"`     // verify: the session of the shop
	Result string `json:"result"` // finish: sold or abandoned
}

// Entry is the answer to both requests.
type Entry struct {
	UserID string     `json:"userId"`
	JTI    string     `json:"jti"`
	Until  int64      `json:"until,omitempty"` // end of the lease in ms of the server's clock
	State  room.State `json:"state"`
}

func refusal(status int, word, message string) web.Refusal {
	return web.Refusal{Status: status, Word: word, Message: message}
}

// handler checks the credential, the body and the entry token before it calls answer.
func (s *Shop) handler(answer func(ctx context.Context, event string, c token.Claims, q request) (room.Place, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !s.isShop(r) {
			web.Refuse(w, r, refusal(http.StatusUnauthorized, "no_shop", "present one of the shop tokens in the header Authorization"))
			return
		}
		event := r.PathValue("id")
		if !room.ValidEvent(event) {
			web.Refuse(w, r, refusal(http.StatusBadRequest, "bad_event", "the id of the event is not valid"))
			return
		}
		var q request
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			web.Refuse(w, r, refusal(http.StatusBadRequest, "bad_body", "the body is not a JSON object with texts"))
			return
		}
		// The lease decides, so the end of the token does not matter here.
		claims, err := s.tokens.Verify(broker.EntryAudience(event), q.Token)
		switch {
		case errors.Is(err, token.ErrAudience):
			web.Refuse(w, r, refusal(http.StatusForbidden, "other_event", "the entry token is for another event"))
			return
		case err != nil && !errors.Is(err, token.ErrExpired), claims.Subject == "" || claims.ID == "":
			web.Refuse(w, r, refusal(http.StatusUnauthorized, "forged", "the entry token is not one of this waiting room"))
			return
		}
		place, err := answer(r.Context(), event, claims, q)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		// A client that is gone needs no answer.
		_ = json.NewEncoder(w).Encode(Entry{UserID: claims.Subject, JTI: claims.ID, Until: place.Until, State: place.State})
	}
}

// isShop compares with all credentials, in the same time for each of them.
func (s *Shop) isShop(r *http.Request) bool {
	scheme, raw, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	given, found := sha256.Sum256([]byte(strings.TrimSpace(raw))), 0
	for _, c := range s.credentials {
		found |= subtle.ConstantTimeCompare(given[:], c[:])
	}
	return found == 1 && strings.EqualFold(scheme, "Bearer")
}

var (
	errSession = errors.New("by must name the session of the shop: 1 to 128 printable characters")
	errResult  = errors.New("result must be sold or abandoned")
)

func (s *Shop) refuse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, errSession), errors.Is(err, errResult):
		web.Refuse(w, r, refusal(http.StatusBadRequest, "bad_body", err.Error()))
	case errors.Is(err, room.ErrUsed):
		web.Refuse(w, r, refusal(http.StatusConflict, "used", "another session uses the entry token"))
	case errors.Is(err, room.ErrConflict):
		web.Refuse(w, r, refusal(http.StatusConflict, "conflict", "the lease has ended in another way, or no slot is free"))
	case errors.Is(err, room.ErrEnded):
		web.Refuse(w, r, refusal(http.StatusGone, "ended", "the lease has ended"))
	case errors.Is(err, room.ErrUnknown):
		web.Refuse(w, r, refusal(http.StatusNotFound, "unknown", "the event has no waiting room"))
	default:
		s.sampled.Warn(s.log, "request of the shop failed", pipeline.Err(err))
		web.Refuse(w, r, refusal(http.StatusServiceUnavailable, "unavailable", "the waiting room is unavailable: try again"))
	}
}

func (s *Shop) verify(ctx context.Context, event string, c token.Claims, q request) (room.Place, error) {
	if !room.ValidUser(q.By) {
		return room.Place{}, errSession
	}
	return s.rooms.Verify(ctx, event, c.Subject, c.ID, q.By)
}

func (s *Shop) finish(ctx context.Context, event string, c token.Claims, q request) (room.Place, error) {
	sold := q.Result == "sold"
	if !sold && q.Result != "abandoned" {
		return room.Place{}, errResult
	}
	place, err := s.rooms.Finish(ctx, event, c.Subject, c.ID, sold)
	failpoint.Hit(failpoint.Finished)
	switch {
	case err == nil && place.How == "late":
		s.late.WithLabelValues("sold").Inc()
	case errors.Is(err, room.ErrConflict) && sold && place.State == room.Expired:
		s.late.WithLabelValues("conflict").Inc()
	}
	return place, err
}
