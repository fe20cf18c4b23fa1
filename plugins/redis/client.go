package redis

import (
	"fmt"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// silence disables the library's own log: it writes to stderr past our logger, and its errors contain the same.
var silence = sync.OnceFunc(logging.Disable) //nolint:gochecknoglobals // the library has one logger per process

// NewClient returns a client for c. It opens no connection; the caller closes it.
//
// The client speaks RESP2: nothing here needs RESP3, whose push messages and maintenance notifications
// cost a check before every command and a handshake that Valkey, proxies and older servers refuse.
// Deadlines of contexts are honoured (the library's default is not to).
func NewClient(c ClientConfig) (goredis.UniversalClient, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("redis client: %w", err)
	}
	tlsConfig, err := c.TLS.Load()
	if err != nil {
		return nil, fmt.Errorf("redis client: %w", err)
	}
	silence()
	options := &goredis.UniversalOptions{
		Addrs:                 c.Addrs,
		MasterName:            c.MasterName,
		IsClusterMode:         c.Cluster,
		Username:              c.Username,
		Password:              c.Password.Reveal(),
		SentinelUsername:      c.SentinelUsername,
		SentinelPassword:      c.SentinelPassword.Reveal(),
		DB:                    c.DB,
		TLSConfig:             tlsConfig,
		Protocol:              2,
		PoolSize:              c.PoolSize,
		DialTimeout:           c.DialTimeout,
		ReadTimeout:           c.ReadTimeout,
		WriteTimeout:          c.WriteTimeout,
		PoolTimeout:           c.PoolTimeout,
		MaxRetries:            c.MaxRetries,
		DialerRetries:         1, // commands are re-sent anyway, and the reason of the last dial is what people need
		ContextTimeoutEnabled: true,
		// CLIENT SETINFO is unknown before Redis 7.2 and refused by narrow ACLs: don't ask on every connect.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if !c.Cluster {
		return goredis.NewUniversalClient(options), nil
	}
	cluster := options.Cluster()
	cluster.ClusterStateReloadInterval = clusterReload
	return goredis.NewClusterClient(cluster), nil
}

// clusterReload is how often a cluster in use is asked which node has which slots. When a primary dies nobody is left to
// send the client elsewhere (MOVED), so until then all commands for its slots fail, though a replica has taken over; the
// library's default is a minute.
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
