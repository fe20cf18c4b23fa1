package redis

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// silence disables the library's own log: it writes to stderr past our logger, and its errors
// contain the same.
var silence = sync.OnceFunc(logging.Disable) //nolint:gochecknoglobals // the library has one logger per process

// NewClient returns a client for c. It opens no connection; the caller closes it. Each new connection
// has the password and the certificates of that moment (setting.Live), also one to a Sentinel, while open
// connections stay authenticated; log has the warning about a file that can't be read, and nil discards it.
//
// The client speaks RESP2. RESP3 has push messages, which cost a check before each command, and a
// handshake that Valkey, proxies and older servers refuse. The client honours the deadlines of
// contexts, unlike the library's default.
func NewClient(c ClientConfig, log *slog.Logger) (goredis.UniversalClient, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("redis client: %w", err)
	}
	certificates, err := c.TLS.Live("tls of redis at "+c.address(), log)
	if err != nil {
		return nil, fmt.Errorf("redis client: %w", err)
	}
	silence()
	password := c.Password.Live("password of redis at "+c.address(), log, nil)
	options := &goredis.UniversalOptions{
		Addrs:                 c.Addrs,
		MasterName:            c.MasterName,
		IsClusterMode:         c.Cluster,
		DB:                    c.DB,
		Protocol:              2,
		PoolSize:              c.PoolSize,
		DialTimeout:           c.DialTimeout,
		ReadTimeout:           c.ReadTimeout,
		WriteTimeout:          c.WriteTimeout,
		PoolTimeout:           c.PoolTimeout,
		MaxRetries:            c.MaxRetries,
		DialerRetries:         1, // commands are re-sent anyway
		ContextTimeoutEnabled: true,
		CredentialsProviderContext: func(ctx context.Context) (string, string, error) {
			return c.Username, password.Value(ctx), nil
		},
		// CLIENT SETINFO is unknown before Redis 7.2, and narrow ACLs refuse it.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if c.MasterName != "" && !c.SentinelPassword.IsZero() {
		options.OnConnect = authenticateAtSentinels(c.SentinelUsername, c.SentinelPassword.Live("password of the sentinels of redis at "+c.address(), log, nil))
	}
	if c.TLS.Enabled {
		options.Dialer = dialEncrypted(c.DialTimeout, certificates)
	}
	if !c.Cluster {
		return goredis.NewUniversalClient(options), nil
	}
	cluster := options.Cluster()
	cluster.ClusterStateReloadInterval = clusterReload
	return goredis.NewClusterClient(cluster), nil
}

// failoverClient is what the library calls the connections that a Sentinel has named the server of.
const failoverClient = "<FailoverClient "

// authenticateAtSentinels presents the credentials of that moment on each new connection to a Sentinel. The
// library would keep the password of the start, and has no provider for it as it has for that of the
// server. The connections to the server, which it has authenticated before, are left alone.
func authenticateAtSentinels(user string, password *setting.Live) func(context.Context, *goredis.Conn) error {
	return func(ctx context.Context, conn *goredis.Conn) error {
		if strings.Contains(conn.String(), failoverClient) {
			return nil
		}
		if user == "" {
			return conn.Auth(ctx, password.Value(ctx)).Err()
		}
		return conn.AuthACL(ctx, user, password.Value(ctx)).Err()
	}
}

// dialEncrypted opens a connection with the certificates of that moment. The library would keep those of
// the start. Its own keep-alive is five minutes, too.
func dialEncrypted(timeout time.Duration, certificates *setting.LiveTLS) func(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: 5 * time.Minute}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return certificates.Client(ctx, conn, address)
	}
}

// clusterReload is the interval at which a client in use reads the slots of the nodes. After the
// loss of a primary no node redirects the client (MOVED), so until then all commands for its slots
// fail. The library's default is a minute.
const clusterReload = 2 * time.Second

// address names the server for people, without credentials.
func (c ClientConfig) address() string {
	a := strings.Join(c.Addrs, ",")
	switch {
	case c.MasterName != "":
		return "sentinel " + c.MasterName + " at " + a
	case c.Cluster:
		return "cluster " + a
	default:
		return a
	}
}
