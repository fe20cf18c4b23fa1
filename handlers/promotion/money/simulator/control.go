package simulator

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

// serveControl answers what is not the Money API's: the book, the summary, the faults.
func (s *Server) serveControl(w http.ResponseWriter, r *http.Request, book *book) {
	switch r.Method + " " + r.URL.Path {
	case "GET /_sim/book":
		q, err := parseQuery(r)
		if err != nil {
			s.problem(w, http.StatusBadRequest, err)
			return
		}
		s.writeJSON(w, book.page(q))
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

// putFaults replaces the faults. Down must end by itself here, since nobody could end it this way.
func (s *Server) putFaults(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		s.problem(w, http.StatusBadRequest, err)
		return
	}
	var f Faults
	if err := json.Unmarshal(raw, &f); err != nil {
		s.problem(w, http.StatusBadRequest, err)
		return
	}
	if f.Down && f.DownFor <= 0 {
		s.problem(w, http.StatusBadRequest, fmt.Errorf("down needs down_for: while it is down it can't be told to come up"))
		return
	}
	if err := f.Validate(); err != nil {
		s.problem(w, http.StatusBadRequest, err)
		return
	}
	if f.Down {
		// The answer goes first: going down cuts this connection, too.
		w.Header().Set("Connection", "close")
		s.writeJSON(w, f)
		http.NewResponseController(w).Flush()
		s.down(f)
		return
	}
	if err := s.SetFaults(f); err != nil {
		s.problem(w, http.StatusInternalServerError, err)
		return
	}
	s.writeJSON(w, f)
}

// down goes down for a request that has been answered.
func (s *Server) down(f Faults) {
	if err := s.SetFaults(f); err != nil {
		s.fail(err)
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
	b, err := json.Marshal(v)
	if err != nil {
		s.problem(w, http.StatusInternalServerError, err)
		return
	}
	s.write(w, http.StatusOK, append(b, '\n'))
}

func (s *Server) problem(w http.ResponseWriter, status int, err error) {
	http.Error(w, err.Error(), status)
}
