package ssetest

import (
	"fmt"
	"strconv"
	"strings"
)

// Order checks that the ids of a stream count from 1, each once and in order, also over reconnects.
// An id is a number, or a key and a number, such as "chat/7:12". Each key is counted by itself. The
// zero value is ready. It is not safe for concurrent use.
type Order struct {
	last map[string]int64
}

// Add checks the next id.
func (o *Order) Add(id string) error {
	key := strings.TrimRight(id, "0123456789")
	n, err := strconv.ParseInt(id[len(key):], 10, 64)
	if err != nil {
		return fmt.Errorf("id %q does not end in a number", id)
	}
	if want := o.last[key] + 1; n != want {
		return fmt.Errorf("id %q follows number %d", id, want-1)
	}
	o.set(key, n)
	return nil
}

// Skip allows that the numbers of key from the next one to last are missing, because the stream has
// announced the hole.
func (o *Order) Skip(key string, last int64) { o.set(key, max(last, o.last[key])) }

// Last returns the last number of key.
func (o *Order) Last(key string) int64 { return o.last[key] }

func (o *Order) set(key string, n int64) {
	if o.last == nil {
		o.last = map[string]int64{}
	}
	o.last[key] = n
}
