package redis

import (
	"reflect"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Tests use clients with the options of production.
func TestTheClientsOfTestsHaveTheDefaultOptions(t *testing.T) {
	config := DefaultClientConfig()
	c, err := NewClient(config)
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
