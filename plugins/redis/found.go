package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// Connect returns the client of the server for one report: that of the service where it runs, or a new one.
// The caller calls closeIt. An error that wraps pipeline.ErrUnavailable says that the server does not
// answer.
func (s *Server) Connect(ctx context.Context) (c goredis.UniversalClient, closeIt func(), err error) {
	if s.own == nil {
		connected, closeIt, err := s.p.connect(ctx)
		if err != nil {
			return nil, nil, err
		}
		c, _ := connected.Value(sharedClient{s.p}).(goredis.UniversalClient)
		return c, closeIt, nil
	}
	if c := s.Client(); c != nil {
		return c, func() {}, nil
	}
	if c, err = NewClient(*s.own, s.log()); err != nil {
		return nil, nil, err
	}
	closeIt = func() { _ = c.Close() } // it was only read
	if err := waitFor(ctx, c, s.own.address(), s.log()); err != nil {
		closeIt()
		return nil, nil, err
	}
	return c, closeIt, nil
}

// Found has the streams that a search of all keys of a server has found, because a search costs Redis as much as it
// has keys. The names are kept for a second for each step of the search, so that searches one after the other take
// about one step a second, and at most for 30 s. A server with so few keys that one step finds all is searched each
// time. Sources whose streams are called alike may share a Found, so that one search is for all of them. It is safe for
// concurrent use.
type Found struct {
	name string

	mu    sync.Mutex
	in    goredis.UniversalClient
	names []string
	until time.Time
}

// NewFound returns a Found that has searched nothing yet. name is what the streams are called, with a part in angle
// brackets that differs, such as ENTRY:{<event>}.
func NewFound(name string) *Found { return &Found{name: name} }

// Backlog adds up what groups have not done in the streams that exist: those that were found, and those that the
// caller knows, which count at once. group returns the group that reads a stream, and false for a stream that only
// has a similar name. The backlog names the streams that are furthest behind.
func (f *Found) Backlog(ctx context.Context, c goredis.UniversalClient, group func(stream string) (string, bool), known ...string) (operate.Backlog, error) {
	found, err := f.streams(ctx, c)
	if err != nil {
		return operate.Backlog{}, fmt.Errorf("redis: find the streams %s: %w", f.name, answered(err))
	}
	streams := slices.Concat(found, known)
	slices.Sort(streams)
	total := operate.Backlog{Waiting: new(int64), InFlight: new(int64), Streams: &operate.StreamBacklogs{}}
	for _, stream := range slices.Compact(streams) {
		of, ok := group(stream)
		if !ok {
			continue
		}
		one := operate.Backlog{Waiting: new(int64), InFlight: new(int64)}
		exists, err := addBacklog(ctx, c, stream, of, &one)
		if err != nil && strings.Contains(err.Error(), "WRONGTYPE") { // behind a prefix of the server's version
			continue
		}
		if err != nil {
			return operate.Backlog{}, fmt.Errorf("redis: backlog of %s: %w", stream, answered(err))
		}
		if exists {
			total.Add(stream, one)
		}
	}
	return total, nil
}

// mostFound is how long names are kept at most.
const mostFound = 30 * time.Second

func (f *Found) streams(ctx context.Context, c goredis.UniversalClient) ([]string, error) {
	f.mu.Lock()
	names, current := f.names, f.in == c && time.Now().Before(f.until)
	f.mu.Unlock()
	if current {
		return names, nil
	}
	names, steps, err := findStreams(ctx, c, f.name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.in, f.names, f.until = c, names, time.Time{}
	if steps > 1 {
		f.until = time.Now().Add(min(time.Duration(steps)*time.Second, mostFound))
	}
	return names, nil
}

// foundPage is how many keys one step of a search looks at.
const foundPage = 1000

// findStreams returns the keys of the streams with a name, on every master of a cluster, and the most steps that one
// of the servers took.
func findStreams(ctx context.Context, c goredis.UniversalClient, name string) (streams []string, most int, err error) {
	before, rest, _ := strings.Cut(name, "<")
	_, after, _ := strings.Cut(rest, ">")
	pattern := globEscape(before) + "*" + globEscape(after)
	var mu sync.Mutex // the masters of a cluster are searched at the same time
	found := map[string]bool{}
	one := func(ctx context.Context, c goredis.Cmdable) error {
		for cursor, steps := uint64(0), 1; ; steps++ {
			keys, next, err := c.ScanType(ctx, cursor, pattern, foundPage, "stream").Result()
			if err != nil {
				return err
			}
			mu.Lock()
			for _, key := range keys {
				found[key] = true // a search may find one twice
			}
			most = max(most, steps)
			mu.Unlock()
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	}
	if cluster, ok := c.(*goredis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *goredis.Client) error { return one(ctx, c) })
	} else {
		err = one(ctx, c)
	}
	streams = make([]string, 0, len(found))
	for key := range found {
		streams = append(streams, key)
	}
	return streams, most, err
}

func globEscape(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}

// Backlog implements operate.Measured: all streams of the family that exist, together and one by one.
func (s familySource) Backlog(ctx context.Context) (operate.Backlog, error) {
	c, done, err := s.f.opts.Server.Connect(ctx)
	if err != nil {
		return operate.Backlog{}, err
	}
	defer done()
	var known []string
	for _, one := range s.f.Reading() {
		known = append(known, one.Stream)
	}
	return s.f.found.Backlog(ctx, c, func(string) (string, bool) { return s.f.opts.Group, true }, known...)
}

// Connect implements operate.Connecting.
func (s familySource) Connect(ctx context.Context) (connected context.Context, closeIt func(), err error) {
	return s.f.p.connect(ctx)
}

var _ operate.Connecting = familySource{}
