package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// Audience is the audience of the tokens that open a job.
const Audience = "millrace-jobs"

// maxJobs limits the jobs of a stream. The ids of their events then have at most maxIDBytes.
const (
	maxJobs    = 32
	maxIDBytes = 2048
)

// events serves the stream of one or several jobs.
func (g *Gateway) events() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys, refusal := g.jobs(r)
		expires := time.Now().Add(g.opts.MaxWatch)
		if refusal == nil {
			expires, refusal = g.permit(r, keys, expires)
		}
		if refusal != nil {
			web.Refuse(w, r, *refusal)
			return
		}
		s := g.newStream(keys, sse.LastEventID(r))
		defer s.leave()
		if err := s.first(r.Context(), r.URL.Query().Get("from") == "now"); err != nil {
			g.opts.Hub.Refuse(w, "unavailable")
			return
		}
		if s.over() {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		g.opts.Hub.Serve(w, r, func(ctx context.Context, c *sse.Client) error {
			end := time.AfterFunc(time.Until(expires), func() { c.Close("expired") })
			context.AfterFunc(ctx, func() { end.Stop() })
			return s.begin(ctx, c)
		})
	})
}

// state serves the state of a job.
func (g *Gateway) state() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys, refusal := g.jobs(r)
		if refusal == nil {
			_, refusal = g.permit(r, keys, time.Time{})
		}
		if refusal != nil {
			web.Refuse(w, r, *refusal)
			return
		}
		pages, err := g.reader.pages(r.Context(), position{keys[0], newest})
		switch {
		case err != nil:
			web.Refuse(w, r, web.Refusal{Status: http.StatusServiceUnavailable, Word: "unavailable", Message: "the state can't be read now"})
		case pages[0].state == nil:
			web.Refuse(w, r, web.Refusal{Status: http.StatusNotFound, Word: "unknown", Message: "no event of this job has arrived, or its state has expired"})
		default:
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			_, _ = w.Write(pages[0].state.event.Data) // a client that is gone needs no answer
		}
	})
}

// jobs returns the jobs of a request: that of the path, and those of the query job.
func (g *Gateway) jobs(r *http.Request) ([]jobKey, *web.Refusal) {
	keys := []jobKey{{r.PathValue("domain"), r.PathValue("job")}}
	for _, text := range r.URL.Query()["job"] {
		domain, id, _ := strings.Cut(text, "/")
		if key := (jobKey{domain, id}); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	if len(keys) > maxJobs {
		return nil, &web.Refusal{Status: http.StatusBadRequest, Word: "too_many_jobs", Message: fmt.Sprintf("a stream has at most %d jobs", maxJobs)}
	}
	for _, key := range keys {
		if !event.ValidJobID(key.id) {
			return nil, &web.Refusal{Status: http.StatusBadRequest, Word: "bad_job", Message: "a job id has 1 to 128 characters of A-Za-z0-9._-, and is not . or .."}
		}
		if g.domain(key.domain) == nil {
			return nil, &web.Refusal{Status: http.StatusNotFound, Word: "unknown_domain", Message: "this server has no such domain"}
		}
	}
	return keys, nil
}

// verified is the result of a verification.
type verified struct {
	claims token.Claims
	err    error
}

type verifiedKey struct{}

func (g *Gateway) verify(raw string) verified {
	claims, err := g.opts.Tokens.Verify(Audience, raw)
	return verified{claims, err}
}

// subject returns the user of the token of a request, for the limit of streams, and the context with
// the result of the verification.
func (g *Gateway) subject(r *http.Request) (context.Context, string) {
	raw := web.Bearer(r)
	if raw == "" {
		return r.Context(), ""
	}
	v := g.verify(raw)
	ctx := context.WithValue(r.Context(), verifiedKey{}, v)
	if v.err != nil {
		return ctx, ""
	}
	return ctx, v.claims.Subject
}

// permit checks the token of a request. It returns the earlier of latest and the time after which
// Verify refuses the token.
func (g *Gateway) permit(r *http.Request, keys []jobKey, latest time.Time) (time.Time, *web.Refusal) {
	raw := web.Bearer(r)
	if raw == "" && g.opts.LoopbackWithoutToken && g.local(r) {
		return latest, nil
	}
	v, known := r.Context().Value(verifiedKey{}).(verified)
	if !known {
		v = g.verify(raw)
	}
	claims, err := v.claims, v.err
	switch {
	case raw == "":
		return latest, &web.Refusal{Status: http.StatusUnauthorized, Word: "no_token", Message: "a token for this job is required"}
	case errors.Is(err, token.ErrExpired):
		return latest, &web.Refusal{Status: http.StatusUnauthorized, Word: "expired", Message: "the token has expired"}
	case errors.Is(err, token.ErrAudience):
		return latest, &web.Refusal{Status: http.StatusForbidden, Word: "other_audience", Message: "the token is not for jobs"}
	case err != nil:
		return latest, &web.Refusal{Status: http.StatusUnauthorized, Word: "bad_token", Message: "the token is not valid here"}
	}
	for _, key := range keys {
		if !slices.Contains(claims.Job, key.String()) {
			return latest, &web.Refusal{Status: http.StatusForbidden, Word: "other_job", Message: "the token is for another job"}
		}
	}
	if end := claims.Expires.Add(token.Leeway); end.Before(latest) {
		latest = end
	}
	return latest, nil
}

// local reports whether the listener and the client are on this machine, without a proxy between
// them that has forwarded the request for another machine. A page of another site may resolve its
// own name to this machine, so the name of the host counts too.
func (g *Gateway) local(r *http.Request) bool {
	forwarded := r.Header.Get("Forwarded") + r.Header.Get("X-Forwarded-For") + r.Header.Get("X-Real-Ip")
	return forwarded == "" && setting.Loopback(g.opts.Web.Addr(), r.RemoteAddr, r.Host)
}
