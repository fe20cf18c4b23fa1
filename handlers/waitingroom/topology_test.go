package waitingroom

import (
	"regexp"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
)

// usesOf returns what a registered plugin writes and follows outside of its routes.
func usesOf(registry *pipeline.Registry, plugin string) (list []string) {
	for _, e := range registry.Endpoints() {
		if e.Plugin == plugin && (e.Use == pipeline.UseWrites || e.Use == pipeline.UseFollows) {
			list = append(list, e.Use+" "+e.String())
		}
	}
	return list
}

// The command topology shows what a role writes and follows.
func TestTheTopologyHasWhatTheRolesWriteAndFollow(t *testing.T) {
	t.Parallel()
	uses := func(role string) []string {
		p, public := newPlugin()
		p.config.Roles = []string{role}
		public.Auth.Header, public.TrustedProxies = "X-User", []string{"127.0.0.1"}
		registry, err := pipeline.NewRegistry(pipeline.Env{}, p.web, p)
		require.NoError(t, err)
		return usesOf(registry, p.Name())
	}
	both := []string{"writes redis-keys DISPATCH*", "writes redis-keys ENTRY*"}
	rest := []string{"writes redis-keys ROOM*", "writes redis-stream ROOM_AUDIT:{<event>}"}
	require.Equal(t, append(append(append([]string{}, both...), rest...), "writes redis-keys WAITING*"), uses(roleBroker)[1:])
	require.Equal(t, "follows redis-string ROOM_TABLE:{<event>}", uses(roleBroker)[0])
	require.Subset(t, uses(roleDispatcher), []string{"writes redis-stream ENTRY:{<event>}", "writes redis-stream DISPATCH:<instance>", "writes redis-string ROOM_TABLE:{<event>}"})
	require.NotContains(t, strings.Join(uses(roleDispatcher), "\n"), "follows")
}

// Everything that a room leaves in Redis is declared, by a route or as what the plugin writes.
func TestEveryKeyOfARoomIsDeclared(t *testing.T) {
	t.Parallel()
	o := startOperated(t, 100*time.Millisecond)
	ctx := t.Context()
	require.NoError(t, o.rooms.Create(ctx, "42"))
	require.NoError(t, o.rooms.SetCapacity(ctx, "42", 1))
	for _, user := range []string{"ann", "bob"} {
		_, err := o.rooms.Enter(ctx, "42", user, "broker-1", 0)
		require.NoError(t, err)
	}
	client := goredis.NewClient(&goredis.Options{Addr: o.redis})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	require.Eventually(t, func() bool { // the dispatcher has notified the broker of the user
		return client.XLen(ctx, room.DispatchStream("broker-1")).Val() == 1
	}, time.Minute, 10*time.Millisecond)
	leases, err := o.rooms.Claim(ctx, "42", "broker-1", []room.Sign{{User: "ann"}})
	require.NoError(t, err)
	_, err = o.rooms.Verify(ctx, "42", "ann", leases[0].JTI, "session")
	require.NoError(t, err)
	_, err = o.rooms.Finish(ctx, "42", "ann", leases[0].JTI, "session", true)
	require.NoError(t, err)
	_, err = o.rooms.Leave(ctx, "42", "bob", "left")
	require.NoError(t, err)

	written := []*regexp.Regexp{regexp.MustCompile(`^millrace:`)} // of plugins/redis
	declare := func(name string) {
		text := regexp.QuoteMeta(name)
		text = regexp.MustCompile(`<[a-z]+>`).ReplaceAllString(text, `.+`)
		written = append(written, regexp.MustCompile(`^\{?`+strings.ReplaceAll(text, `\*`, `.*`)+`$`)) // companions begin with a brace
	}
	for _, e := range o.registry.Endpoints() {
		if e.Use == pipeline.UseWrites {
			declare(e.Name)
		}
	}
	for _, key := range client.Keys(ctx, "*").Val() {
		declared := false
		for _, pattern := range written {
			declared = declared || pattern.MatchString(key)
		}
		require.True(t, declared, key)
	}
	require.NotZero(t, client.Exists(ctx, room.TableKey("42")).Val())
	require.NotZero(t, client.Exists(ctx, room.EntryStream("42")).Val())
}
