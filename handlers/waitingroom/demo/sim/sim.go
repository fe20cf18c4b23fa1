// Package sim is a simulated Event Service, for demos and tests.
package sim

import (
	"fmt"
	"net/http"
	"sync"
)

// Mode says how the simulated service behaves.
type Mode string

// The modes. The zero value is Healthy.
const (
	Healthy     Mode = "healthy"
	Slow        Mode = "slow"        // no answer until the caller ends the call
	Unavailable Mode = "unavailable" // status 503
	Nonsense    Mode = "nonsense"    // another wrong answer each time
)

// Modes returns all modes.
func Modes() []Mode { return []Mode{Healthy, Slow, Unavailable, Nonsense} }

// Nonsenses returns the wrong answers of the mode Nonsense, in their order.
func Nonsenses() []string {
	return []string{
		`null`, `-1`, `"many"`, `<html>try later</html>`, ``, `{}`, `{"seatCount":null}`, `{"seatCount":-1}`, `{"seatCount":-2}`, `{"seatCount":"many"}`, `{"seatCount":1.5}`,
		`{"seatCount":9223372036854775807}`,
	}
}

// Service is the simulated service, a handler of GET /events/{id}. Safe for concurrent use.
type Service struct {
	mux *http.ServeMux

	mu    sync.Mutex
	mode  Mode
	seats map[string]int64
	calls map[string]int
	wrong int // nonsense answers
}

// New returns a service with the seats of its events.
func New(seats map[string]int64) *Service {
	s := &Service{mux: http.NewServeMux(), seats: seats, calls: map[string]int{}}
	s.mux.HandleFunc("GET /events/{id}", s.answer)
	return s
}

// Set changes the mode of all later calls.
func (s *Service) Set(m Mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
}

// Calls returns the number of calls for an event.
func (s *Service) Calls(event string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[event]
}

// ServeHTTP implements http.Handler.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

func (s *Service) answer(w http.ResponseWriter, r *http.Request) {
	event := r.PathValue("id")
	s.mu.Lock()
	s.calls[event]++
	mode := s.mode
	seats, known := s.seats[event]
	text := fmt.Sprintf(`{"seatCount":%d}`, seats)
	if mode == Nonsense {
		text = Nonsenses()[s.wrong%len(Nonsenses())]
		s.wrong++
	}
	s.mu.Unlock()
	switch {
	case mode == Slow:
		<-r.Context().Done()
	case mode == Unavailable:
		http.Error(w, "unavailable", http.StatusServiceUnavailable)
	case !known:
		http.Error(w, "no such event", http.StatusNotFound)
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, text)
	}
}
