package broker

import (
	"maps"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

// tableAge is how long clients that poll share a rank table.
const tableAge = time.Second

// tables reads each rank table at most once per tableAge. An error is shared too.
type tables struct {
	mu     sync.Mutex
	events map[string]sharedTable
}

type sharedTable struct {
	at   time.Time
	read func() (*room.Table, error)
}

// get returns the table of an event. The first caller reads it, and the others wait.
func (t *tables) get(event string, now time.Time, read func() (*room.Table, error)) (*room.Table, error) {
	t.mu.Lock()
	s, found := t.events[event]
	if !found || now.Sub(s.at) >= tableAge {
		s = sharedTable{now, sync.OnceValues(read)}
		if t.events == nil {
			t.events = map[string]sharedTable{}
		}
		t.events[event] = s
	}
	t.mu.Unlock()
	return s.read()
}

// clean removes old tables.
func (t *tables) clean(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.events, func(_ string, s sharedTable) bool { return now.Sub(s.at) >= tableAge })
}
