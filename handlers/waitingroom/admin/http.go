package admin

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/web"
)

// Pattern is where the API is mounted on the operations server.
const Pattern = "POST /api/v1/rooms/{id}/{verb}"

const maxBody = 64 << 10

// Handler returns the API. A request presents a bearer token (web.NamedTokens), by the name of its operator, whom
// the audit then names.
func Handler(rooms *room.Store, tokens map[string]setting.Secret, log *slog.Logger) http.Handler {
	operators := web.NewNamedTokens(func(name string) string { return "plugins.waitingroom.admin_tokens." + name }, log, tokens)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		name := operators.NameOf(r)
		if name == "" {
			refuse(w, r, http.StatusUnauthorized, "no_operator", "present a token of plugins.waitingroom.admin_tokens in the header Authorization, as a bearer token")
			return
		}
		event, verb := r.PathValue("id"), r.PathValue("verb")
		if !slices.Contains(append(Changes(), Status, Find, Audit, Shuffle), verb) {
			refuse(w, r, http.StatusNotFound, "unknown_verb", "there is no such verb")
			return
		}
		var q Request
		body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
		body.DisallowUnknownFields()
		if err := body.Decode(&q); err != nil && !errors.Is(err, io.EOF) {
			refuse(w, r, http.StatusBadRequest, "bad_body", err.Error())
			return
		}
		q.Operator = name + " (api)" // as the console names people in an audit
		answer, err := Do(r.Context(), rooms, event, verb, q)
		switch {
		case err == nil:
			if a, is := answer.(shuffle.Audit); is {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
				_ = a.Write(w) // a client that is gone needs no answer
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer) // the same
		case IsMistake(err):
			refuse(w, r, http.StatusBadRequest, "bad_request", err.Error())
		case errors.Is(err, room.ErrUnknown):
			refuse(w, r, http.StatusNotFound, "unknown", "the event has no room")
		case errors.Is(err, room.ErrConflict):
			refuse(w, r, http.StatusConflict, "conflict", err.Error())
		case errors.Is(err, redis.ErrNotReplicated):
			refuse(w, r, http.StatusServiceUnavailable, "unavailable", "the change was made, but too few replicas have it: repeat it")
		default:
			log.ErrorContext(r.Context(), "request of an operator failed", slog.String("event", event), slog.String("verb", verb), slog.String("operator", name), logs.Err(err))
			refuse(w, r, http.StatusServiceUnavailable, "unavailable", "redis is unavailable")
		}
	})
}

func refuse(w http.ResponseWriter, r *http.Request, status int, word, message string) {
	web.Refuse(w, r, web.Refusal{Status: status, Word: word, Message: message})
}
