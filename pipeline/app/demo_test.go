package app

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

type needy struct {
	name  string
	needs []string
}

func (n needy) Name() string                      { return n.name }
func (n needy) Register(*pipeline.Registry) error { return nil }
func (n needy) Needs() []string                   { return n.needs }

// A handler that was added to the binary must not end a demo that needs no Kafka.
func TestADemoSwitchesOffWhatNeedsASwitchedOffPlugin(t *testing.T) {
	t.Parallel()
	h := &Host{o: Options{Plugins: []pipeline.Plugin{
		needy{"reports", []string{"greetings"}}, needy{"greetings", []string{"redis", "kafka"}}, needy{"room", []string{"redis"}}, needy{"kafka", nil}, needy{"redis", nil},
	}}}
	require.Equal(t, []string{"kafka", "greetings", "reports"}, h.withDependents([]string{"kafka"}))
	require.Equal(t, []string{"none"}, h.withDependents([]string{"none"}))
}
