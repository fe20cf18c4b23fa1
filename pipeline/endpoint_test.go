package pipeline_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// user uses places outside of routes, some of them twice.
type user string

func (u user) Name() string { return string(u) }

func (user) Register(r *pipeline.Registry) error {
	at := pipeline.Endpoint{Kind: "kafka", Name: "orders"}
	for range 2 {
		r.Endpoint(pipeline.UseFollows, at)
		r.Endpoint(pipeline.UseWrites, at)
		r.Endpoint(pipeline.UseFollows, pipeline.Endpoint{Kind: "kafka", Name: "orders", Group: "g"})
		r.Endpoint(pipeline.UseCalls, pipeline.ServersOf("https://api.example/v1", "https://api.example/token")...)
	}
	return nil
}

// What a plugin uses twice is one endpoint of it, and another plugin has its own.
func TestAnEndpointThatIsUsedTwice(t *testing.T) {
	t.Parallel()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, user("a"), user("b"))
	require.NoError(t, err)
	require.Len(t, reg.Endpoints(), 8)
	require.Equal(t, "https://api.example", reg.Endpoints()[0].Name)
}
