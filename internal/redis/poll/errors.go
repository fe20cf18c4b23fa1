package poll

import (
	"errors"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
)

// ErrStopped is returned for work offered to a reader that is stopping or has stopped.
var ErrStopped = errors.New("reader stopped")

// IsReply reports whether err is an answer of the server: the command was read and refused, and
// nothing was lost on the way.
func IsReply(err error) bool {
	var r goredis.Error
	return errors.As(err, &r) || errors.Is(err, goredis.Nil)
}

// IsNoGroup reports whether err says that the stream or its group is gone. Inside a script's error
// the server's own text follows a prefix of its version's choosing.
func IsNoGroup(err error) bool {
	return err != nil && strings.Contains(err.Error(), "NOGROUP")
}

// IsNoKey reports whether err says that there is no stream of this name.
func IsNoKey(err error) bool {
	return err != nil && strings.Contains(err.Error(), "no such key")
}

// WithRemedy adds pipeline.ErrUnavailable, and what to do, to an error reply of a server that is
// full or that lacks rights for the user. All other errors are returned unchanged.
func WithRemedy(err error) error {
	switch {
	case err == nil || !IsReply(err):
		return err
	case IsFull(err):
		return fmt.Errorf("redis: %w: the server is full, give it memory (maxmemory) or remove data: %w", pipeline.ErrUnavailable, err)
	case IsDenied(err):
		return fmt.Errorf("redis: %w: the ACL user lacks a right, "+GrantRights+": %w", pipeline.ErrUnavailable, err)
	}
	return err
}

// GrantRights is what to do for a user that lacks a right.
const GrantRights = "so give it those of ACL SETUSER in plugins/redis/README.md#configuration"

// IsDenied reports whether err says that the user lacks a right, in the words of Redis 7.0, later
// ones and Valkey.
func IsDenied(err error) bool {
	for _, text := range []string{"NOPERM", "can't run this command", "no permissions"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// IsFull reports whether err says that the server's memory is full.
func IsFull(err error) bool {
	return err != nil && (strings.HasPrefix(err.Error(), "OOM ") || strings.Contains(err.Error(), "OOM command not allowed"))
}
