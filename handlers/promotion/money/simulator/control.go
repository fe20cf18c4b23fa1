package simulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

// serveControl answers the paths that are not the Money API's.
func (s *Server) serveControl(w http.ResponseWriter, r *http.Request, j *journal) {
	switch r.Method + " " + r.URL.Path {
	case "GET /_sim/journal":
		q, err := parseQuery(r)
		if err != nil {
			s.problem(w, http.StatusBadRequest, err)
			return
		}
		s.writeJSON(w, j.page(q))
	case "GET /_sim/summary":
		s.writeJSON(w, s.Summary())
	case "GET /_sim/faults":
		s.writeJSON(w, s.Faults())
	case "PUT /_sim/faults":
		s.putFaults(w, r)
	default:
		s.problem(w, http.StatusNotFound, fmt.Errorf("there is no %s %s", r.Method, r.URL.Path))
	}
}

// putFaults replaces the faults. Down needs its end here, because no request can end it.
func (s *Server) putFaults(w http.ResponseWriter, r *http.Request) {
	var f Faults
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	if err == nil && f.Down && f.DownFor <= 0 {
		err = errors.New("down needs down_for: while it is down no request can end it")
	}
	if err == nil {
		err = f.Validate()
	}
	if err != nil {
		s.problem(w, http.StatusBadRequest, err)
		return
	}
	if f.Down { // it cuts this connection, so the answer goes first
		w.Header().Set("Connection", "close")
		s.writeJSON(w, f)
	}
	if err := s.SetFaults(f); err != nil {
		s.fail(err)
	}
	if !f.Down {
		s.writeJSON(w, f)
	}
}

func parseQuery(r *http.Request) (Query, error) {
	v := r.URL.Query()
	q := Query{Type: strings.ToUpper(v.Get("type")), After: v.Get("after")}
	if _, known := promotiontype.ByName(q.Type); q.Type != "" && !known {
		return q, fmt.Errorf("type must be one of %s, got %q", strings.Join(promotiontype.Names(), ", "), v.Get("type"))
	}
	if text := v.Get("promotion"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 {
			return q, fmt.Errorf("promotion must be a positive number, got %q", text)
		}
		q.PromotionID = n
	}
	if text := v.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxPage {
			return q, fmt.Errorf("limit must be between 1 and %d, got %q", maxPage, text)
		}
		q.Limit = n
	}
	return q, nil
}

func (s *Server) writeJSON(w http.ResponseWriter, v any) {
	b, _ := json.Marshal(v)
	s.write(w, http.StatusOK, append(b, '\n'))
}

func (s *Server) problem(w http.ResponseWriter, status int, err error) {
	http.Error(w, err.Error(), status)
}
