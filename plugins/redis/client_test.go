package redis

import (
	"log/slog"
	"reflect"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Tests use clients with the options of production, which only wait longer for an answer.
func TestTheClientsOfTestsHaveTheDefaultOptions(t *testing.T) {
	config := DefaultClientConfig()
	config.ReadTimeout, config.WriteTimeout = redistest.Timeout, redistest.Timeout
	c, err := NewClient(config, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	ofTests := redistest.Server{Addr: config.Addrs[0]}.Client(t)
	require.Equal(t, withoutFunctions(c.(*goredis.Client).Options()), withoutFunctions(ofTests.Options()))
}

// withoutFunctions returns the options that can be compared.
func withoutFunctions(o *goredis.Options) goredis.Options {
	out := *o
	v := reflect.ValueOf(&out).Elem()
	for i := range v.NumField() {
		if field := v.Field(i); field.CanSet() && field.Kind() == reflect.Func {
			field.SetZero()
		}
	}
	return out
}

func TestEvictingServerIsRefused(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, info string
		err        error
		logged     string
	}{
		{name: "noeviction", info: "# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"},
		{name: "allkeys-lru", info: "# Memory\r\nmaxmemory_policy:allkeys-lru\r\n", err: errEvicts},
		{name: "unreadable", info: "# Memory\r\n", logged: "maxmemory-policy is unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := &redistest.EmptyServer{Info: tt.info}
			c := s.Client()
			var lines redistest.Lines
			err := checkEviction(t.Context(), c, slog.New(slog.NewTextHandler(&lines, nil)))
			require.ErrorIs(t, err, tt.err)
			require.Contains(t, lines.String(), tt.logged)
			require.NoError(t, c.Close())
			s.Wait()
		})
	}
	t.Run("real servers tell", func(t *testing.T) {
		redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
			var lines redistest.Lines
			require.NoError(t, checkEviction(t.Context(), s.Client(t), slog.New(slog.NewTextHandler(&lines, nil))))
			require.Empty(t, lines.String())
		})
	})
}

func TestStartDoesNotWaitForADatabaseThatDoesNotExist(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		c := DefaultClientConfig()
		c.Addrs, c.DB = []string{s.Addr}, 1<<20
		_, err := open(t.Context(), c, redistest.Logger(t), nil) // the context never ends
		require.ErrorIs(t, err, pipeline.ErrUnavailable)
		require.ErrorContains(t, err, "refuses us: ERR DB index is out of range")
	})
}
