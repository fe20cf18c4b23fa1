package kafka

import (
	"errors"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
)

// away is a client whose brokers don't answer.
type away struct{ sarama.Client }

func (away) Partitions(string) ([]int32, error)         { return []int32{0, 1}, nil }
func (away) RefreshCoordinator(string) error            { return errAway }
func (away) Coordinator(string) (*sarama.Broker, error) { return nil, errAway }
func (away) Config() *sarama.Config                     { return sarama.NewConfig() }

var errAway = errors.New("no broker answers")

// Who does not know which partitions were added must not begin: one without a commit would be read from its end, and its
// first records never.
func TestAddedPartitionsAreNotGuessed(t *testing.T) {
	t.Parallel()
	_, err := committed{client: away{}, topic: "orders", group: "g"}.added()
	require.ErrorIs(t, err, errAway)
	require.ErrorContains(t, err, "read the commits of orders")
}
