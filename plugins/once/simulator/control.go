package simulator

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// serveControl answers the paths that are not the far side's.
func (s *Server) serveControl(w http.ResponseWriter, r *http.Request, j *journal) {
	switch r.Method + " " + r.URL.Path {
	case "GET /_sim/journal":
		s.serveJournal(w, r, j)
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

func (s *Server) serveJournal(w http.ResponseWriter, r *http.Request, j *journal) {
	v := r.URL.Query()
	q := Query{Filter: v, After: v.Get("after")}
	match, err := s.api.Filter(v)
	if text := v.Get("limit"); text != "" && err == nil {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 1 || q.Limit > maxPage {
			err = fmt.Errorf("limit must be between 1 and %d, got %q", maxPage, text)
		}
	}
	switch format := v.Get("format"); {
	case err != nil:
		s.problem(w, http.StatusBadRequest, err)
	case format == "book":
		s.writeBook(w, j, q, match)
	case format != "":
		s.problem(w, http.StatusBadRequest, fmt.Errorf("format must be book, or absent, got %q", format))
	default:
		s.writeJSON(w, j.page(q, match))
	}
}

// writeBook writes all entries after q.After as a book for `once reconcile`.
func (s *Server) writeBook(w http.ResponseWriter, j *journal, q Query, match func(subject string) bool) {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	out := csv.NewWriter(w)
	defer out.Flush() // an error is that of the caller, who is gone
	columns := []string{"key", "receipt", "times", "sum"}
	if !s.api.Sums {
		columns = columns[:3]
	}
	_ = out.Write(columns)
	for q.Limit = maxPage; ; {
		p := j.page(q, match)
		for _, e := range p.Entries {
			_ = out.Write([]string{e.Key, e.Receipt, strconv.Itoa(e.Executions), strconv.FormatInt(e.Sum, 10)}[:len(columns)])
		}
		if q.After = p.Next; q.After == "" {
			return
		}
	}
}

func (s *Server) writeJSON(w http.ResponseWriter, v any) {
	b, _ := json.Marshal(v)
	s.write(w, http.StatusOK, append(b, '\n'))
}

func (s *Server) problem(w http.ResponseWriter, status int, err error) {
	http.Error(w, err.Error(), status)
}
