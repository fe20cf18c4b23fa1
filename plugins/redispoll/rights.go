package redispoll

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// probeKey is where the plugin looks whether it may run its commands.
const probeKey = "millrace:probe"

// CheckRights finds out whether the user of c may run every command that the plugins use on each of the keys, which
// must not exist and don't exist afterwards. The error wraps ErrUnavailable and names the missing rights.
func CheckRights(ctx context.Context, c redis.UniversalClient, keys ...string) error {
	script := newScripts().rights
	for _, key := range keys {
		denied, err := script.Run(ctx, c, []string{key}).StringSlice()
		if err != nil {
			return unusable(fmt.Errorf("check of the rights on key %q: %w", key, err))
		}
		if len(denied) > 0 {
			return fmt.Errorf("%w: the ACL user may not run these commands on key %q: %s", ErrUnavailable, key, strings.Join(denied, ", "))
		}
	}
	return nil
}

// unusable adds ErrUnavailable, and what a person must do, to an error reply of a server that is full or that lacks
// rights for the user. All other errors are returned unchanged.
func unusable(err error) error {
	switch {
	case err == nil || !IsReply(err):
		return err
	case isFull(err):
		return fmt.Errorf("%w: the server is full, give it memory (maxmemory) or remove data: %w", ErrUnavailable, err)
	case isDenied(err):
		return fmt.Errorf("%w: the ACL user lacks a right: %w", ErrUnavailable, err)
	}
	return err
}

// isDenied reports whether err says that the user lacks a right, in the words of Redis 7.0, later ones and Valkey.
func isDenied(err error) bool {
	for _, text := range []string{"NOPERM", "can't run this command", "no permissions"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// isFull reports whether err says that the server's memory is full.
func isFull(err error) bool {
	return err != nil && (strings.HasPrefix(err.Error(), "OOM ") || strings.Contains(err.Error(), "OOM command not allowed"))
}
