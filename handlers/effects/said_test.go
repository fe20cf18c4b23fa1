package effects

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Clients read why the API has refused an effect, and nothing that is for operators.
func TestClientsReadWhatTheAPISaid(t *testing.T) {
	t.Parallel()
	for said, states := range map[bool][]once.State{
		true: {{State: rules.Failed, Class: "rejected"}},
		false: {
			{State: rules.Failed, Class: rules.ClassResolved}, {State: rules.Failed, Class: "undecodable"}, {State: rules.Failed, Class: "not_sent"},
			{State: rules.Unknown, Class: "unclear"}, {State: rules.Errored, Class: "not_sent"}, {State: rules.Pending, Class: "misconfigured"},
		},
	} {
		for _, s := range states {
			require.Equal(t, said, saidByTheAPI(s), "%+v", s)
		}
	}
}
