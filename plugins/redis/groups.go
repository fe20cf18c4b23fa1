package redis

import (
	"cmp"
	"context"
	_ "embed" // the functions of scripts
	"fmt"
	"slices"
	"strings"
	"time"
)

//go:embed lua/groups.lua
var groupsSource string

// GroupsLua returns Lua functions about the consumer groups of a stream, for scripts of other
// plugins.
func GroupsLua() string { return groupsSource }

// HasGroup reports whether a consumer group reads a stream on the shared server. A stream that does not exist has none.
// The service must have been started.
func (p *Plugin) HasGroup(ctx context.Context, stream string) (bool, error) {
	c := p.Client()
	if c == nil {
		return false, errNotStarted
	}
	groups, err := groupsOf(ctx, c, stream)
	return len(groups) > 0, err
}

// DelayingGroup is a foreign consumer group. It has entries, pending or unread, that the other
// groups have acknowledged.
type DelayingGroup struct {
	Group string `json:"group"`
	// For is how long it has done so.
	For time.Duration `json:"-"`
	// Ignored: longer than the grace of foreign groups, so that trimming no longer waits for it.
	Ignored bool `json:"ignored"`
}

// ParseDelaying reads the list of delaying groups in a script's reply.
func ParseDelaying(v any) ([]DelayingGroup, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("unexpected reply %v", v)
	}
	var out []DelayingGroup
	for _, e := range list {
		one, _ := e.([]any)
		if len(one) != 3 {
			return nil, fmt.Errorf("unexpected reply %v", v)
		}
		name, ok1 := one[0].(string)
		millis, ok2 := one[1].(int64)
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("unexpected reply %v", v)
		}
		out = append(out, DelayingGroup{Group: name, For: time.Duration(millis) * time.Millisecond, Ignored: one[2] == int64(1)})
	}
	return out, nil
}

const (
	// delayNoticed is how long a foreign group delays a stream before it is reported. Every reading
	// group is a little behind.
	delayNoticed = 10 * time.Second
	// delayNames bounds the group names of Delays.ByGroup; other groups are counted together.
	delayNames  = 10
	delayOthers = "other"
)

// Delays collects the foreign groups that one round over many streams has found. The zero value is
// ready.
type Delays struct {
	Streams int           // streams that are delayed
	Stream  string        // the one that is delayed longest
	Worst   DelayingGroup // by this group

	groups map[string]int // streams per group
}

// Note adds the groups that delay a stream for 10 s, or for the grace if that is shorter.
func (d *Delays) Note(stream string, groups []DelayingGroup, grace time.Duration) {
	seen := false
	for _, g := range groups {
		if g.For < min(delayNoticed, grace) {
			continue
		}
		if d.groups == nil {
			d.groups = map[string]int{}
		}
		d.groups[g.Group]++
		if g.For > d.Worst.For || d.Stream == "" {
			d.Stream, d.Worst = stream, g
		}
		seen = true
	}
	if seen {
		d.Streams++
	}
}

// ByGroup returns how many streams each group delays. The ten groups that delay most have their
// names, the rest is "other".
func (d *Delays) ByGroup() map[string]int {
	names := make([]string, 0, len(d.groups))
	for name := range d.groups {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(d.groups[b]-d.groups[a], strings.Compare(a, b)) })
	out := map[string]int{}
	for i, name := range names {
		if i < delayNames {
			out[name] = d.groups[name]
		} else {
			out[delayOthers] += d.groups[name]
		}
	}
	return out
}

// MetaKey returns the companion of a stream: {stream}:meta, or stream:meta when the stream has a
// hash tag. Both keys have the same slot of a Redis Cluster.
func MetaKey(stream string) string { return companion(stream, "meta") }

func companion(stream, suffix string) string {
	if hashTag(stream) != "" {
		return stream + ":" + suffix
	}
	return "{" + stream + "}:" + suffix
}
