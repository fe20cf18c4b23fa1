package once

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// Names are the names in Redis of a kind with via: streams, for one that keeps a contract with other programs. What
// follows a prefix is the group, as in the text of a key.
type Names struct {
	// Stream is the prefix of a group's stream. Empty: once:NAME: with the name of the kind.
	Stream string `yaml:"stream"`
	// StreamGroup is the prefix of the consumer group of a stream. Empty: once-group:NAME:
	StreamGroup string `yaml:"stream_group"`
	// ActiveSet is the set of groups that have a stream. Empty: once-active:NAME
	ActiveSet string `yaml:"active_set"`
}

const (
	streamPrefix = "once:"
	streamName   = streamPrefix + "<kind and group>" // of kinds without names of their own
)

// nameShape leaves out braces, which would say where in a cluster a key is. As two colons in a row are left out, too, the
// last colon of a stream's key ends its prefix.
var nameShape = regexp.MustCompile(`^[A-Za-z0-9._-]+(:[A-Za-z0-9._-]+)*$`)

// Validate reports every mistake at once.
func (n Names) Validate() error {
	var p setting.Problems
	prefix := func(path, name string) {
		before, colon := strings.CutSuffix(name, ":")
		p.Check(name == "" || colon && nameShape.MatchString(before), path,
			"must be letters, digits, -, _ and . with single colons between them and one at the end, such as SHOP-STREAM:, because a group is appended, got %q", name)
	}
	prefix("stream", n.Stream)
	prefix("stream_group", n.StreamGroup)
	p.Check(n.ActiveSet == "" || nameShape.MatchString(n.ActiveSet), "active_set", "must be letters, digits, -, _ and . with single colons between them, got %q", n.ActiveSet)
	return p.Err()
}

// of returns the names with those that are derived from the name of the kind.
func (n Names) of(kind string) Names {
	return Names{
		Stream: orDefault(n.Stream, streamPrefix+kind+":"), StreamGroup: orDefault(n.StreamGroup, "once-group:"+kind+":"),
		ActiveSet: orDefault(n.ActiveSet, "once-active:"+kind),
	}
}

func orDefault(name, otherwise string) string {
	if name == "" {
		return otherwise
	}
	return name
}

// isStream reports whether a group can have the stream key.
func (n Names) isStream(key string) bool {
	group, ok := strings.CutPrefix(key, n.Stream)
	return ok && !strings.Contains(group, ":")
}

var errOneKey = errors.New("two kinds, or a stream and a set, would have one key in Redis: change Kind.Names, in plugins.effects the setting names")

// free returns an error if a key in Redis would be of two things. Consumer groups may have equal names, because each
// belongs to a stream.
func (n Names) free(kind string, others []*worker) error {
	if n.isStream(n.ActiveSet) {
		return fmt.Errorf("once: kind %q: its active set %s could be one of its streams %s…: %w", kind, n.ActiveSet, n.Stream, errOneKey)
	}
	for _, w := range others {
		if w.spread == nil || w.name == kind {
			continue
		}
		o := w.spread.names
		if n.Stream == o.Stream || n.ActiveSet == o.ActiveSet || n.isStream(o.ActiveSet) || o.isStream(n.ActiveSet) {
			return fmt.Errorf("once: kind %q with the streams %s… and the active set %s, and kind %q with %s… and %s: %w", kind, n.Stream, n.ActiveSet, w.name, o.Stream, o.ActiveSet, errOneKey)
		}
	}
	return nil
}
