package streams

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// ErrRefused is returned when the server refuses one stream because of its key or its companion.
// The key has a value of another type, or a last entry id that no id can follow. Nothing was added.
// Other streams are not affected, so a caller must not make them wait. The refusal ends when the
// key is removed or renamed.
var ErrRefused = errors.New("redis refuses this stream's key")

// ErrForeign is returned when a stream belongs to another deployment. Nothing was added. It is like
// ErrRefused for a caller. It ends when the other deployment has deleted the stream, or when the
// owner in the companion is removed.
var ErrForeign = errors.New("the stream belongs to another deployment")

// refusals returns texts of error replies that are about one key. A reply that is not listed is
// about the server (OOM, LOADING, READONLY, CLUSTERDOWN, NOPERM and so on), and concerns every
// stream.
func refusals() []string {
	return []string{
		"WRONGTYPE",
		"The ID specified in XADD is equal or smaller than the target stream top item",
		"The stream has exhausted the last possible ID",
	}
}

// foreignReply begins the error reply of scripts about a stream of another deployment. The owner
// follows.
const foreignReply = "FOREIGN "

// refusal adds ErrRefused or ErrForeign to an error reply about one stream, counts it and logs it.
// All other errors are returned unchanged.
func (m *Manager) refusal(id string, err error) error {
	if !poll.IsReply(err) || errors.Is(err, ErrRefused) {
		return err
	}
	stream := slog.String(logs.Stream, m.opts.Kind.Stream(id))
	if owner, foreign := strings.CutPrefix(err.Error(), foreignReply); foreign {
		m.sampler.Warn(m.log, "a stream belongs to another deployment, it is not read here and its work waits", stream, slog.String("owner", owner))
		return fmt.Errorf("%w: %s", ErrForeign, owner)
	}
	for _, text := range refusals() {
		if !strings.Contains(err.Error(), text) {
			continue
		}
		m.opts.Metrics.refused(m.opts.Kind.Type)
		m.sampler.Warn(m.log, "redis refuses a stream's key, its work waits; other streams are not affected", stream, logs.Err(err))
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// warnEvery is the least time between two warnings with the same text. Each of thousands of
// streams may cause one.
const warnEvery = time.Minute
