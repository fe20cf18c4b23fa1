package redis

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Entry is an entry of a stream that is an audit.
type Entry struct {
	Of     string // the name that the caller has for the stream
	ID     string
	Fields map[string]string
}

// Place is the place of the entry among those of several streams, for Newest.
func (e Entry) Place() string { return e.ID + "/" + e.Of }

// At is the time of the server at which the entry was added.
func (e Entry) At() time.Time {
	ms, _, _ := strings.Cut(e.ID, "-")
	n, _ := strconv.ParseInt(ms, 10, 64)
	return time.UnixMilli(n).UTC()
}

var entryPlace = regexp.MustCompile(`^(\d{1,15}-\d{1,15})/(.+)$`)

// Newest returns the newest entries of streams, at most n that come after a place, which is empty for the newest
// one. streams has the key of each stream by a name. Entries with the same id are ordered by the names.
func (s *Server) Newest(ctx context.Context, streams map[string]string, before string, n int) ([]Entry, error) {
	after := entryPlace.FindStringSubmatch(before)
	if before != "" && after == nil {
		return nil, &operate.InputError{Problem: "before must be the id of a change, such as 1764590400000-0/42, got " + strconv.Quote(before), Field: "before"}
	}
	names := slices.Sorted(maps.Keys(streams))
	calls := make([]*Call, len(names))
	for i, name := range names {
		from := "+"
		switch {
		case after == nil:
		case name < after[2]: // its entry of the same id comes later
			from = after[1]
		default:
			from = "(" + after[1]
		}
		calls[i] = Command("XREVRANGE", streams[name], from, "-", "COUNT", n)
	}
	if err := s.Do(ctx, calls...); err != nil {
		return nil, fmt.Errorf("read the newest entries: %w", err)
	}
	var all []Entry
	for i, name := range names {
		list, err := calls[i].List()
		if err != nil {
			return nil, fmt.Errorf("read the stream %s: %w", streams[name], err)
		}
		for _, v := range list {
			pair, _ := v.([]any)
			if len(pair) != 2 {
				return nil, fmt.Errorf("read the stream %s: unexpected entry %v", streams[name], v)
			}
			e := Entry{Of: name, ID: fmt.Sprint(pair[0]), Fields: map[string]string{}}
			flat, _ := pair[1].([]any)
			for i := 0; i+1 < len(flat); i += 2 {
				e.Fields[fmt.Sprint(flat[i])] = fmt.Sprint(flat[i+1])
			}
			all = append(all, e)
		}
	}
	sorted.By(all, func(a, b Entry) int { return cmp.Or(compareIDs(b.ID, a.ID), strings.Compare(b.Of, a.Of)) })
	return all[:min(len(all), n)], nil
}

// compareIDs orders ids of entries, which are two numbers without leading zeros.
func compareIDs(a, b string) int {
	aTime, aNumber, _ := strings.Cut(a, "-")
	bTime, bNumber, _ := strings.Cut(b, "-")
	return cmp.Or(len(aTime)-len(bTime), strings.Compare(aTime, bTime), len(aNumber)-len(bNumber), strings.Compare(aNumber, bNumber))
}
