package promotion_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/kafka"
)

// committed returns the number of records of the publish topic before the committed offsets.
func (sys *system) committed(t promotiontype.Type) (records int64) {
	sys.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(sys.servers.KafkaAddrs()...))
	require.NoError(sys.t, err)
	defer client.Close()
	offsets, err := kadm.NewClient(client).FetchOffsets(sys.t.Context(), t.Group())
	require.NoError(sys.t, err)
	require.NoError(sys.t, offsets.Error())
	offsets.Each(func(o kadm.OffsetResponse) {
		if o.Topic == t.PublishTopic() {
			records += o.At
		}
	})
	return records
}

// The synchronous standby is cut off while a campaign is published, and the waits of the commits are
// cancelled. Kafka's committed offsets pass no record that the standby does not have, so that after
// a failover to it Kafka delivers the rest again, and all are paid.
func TestAFailoverOfTheDatabaseLosesNoRecord(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		tier.Default(t)
		const before, all = 20, 120
		point, _ := promotiontype.ByName("POINT")
		p := sqldbtest.NewPair(t)
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) { c.Ledger.DSN = setting.NewSecret(p.DSN()) })
		sys.kafka.Settings().(*kafka.Config).CommitInterval = 50 * time.Millisecond
		conn, err := pgx.Connect(t.Context(), p.Primary())
		require.NoError(t, err)
		defer func() { _ = conn.Close(context.Background()) }()
		sys.start()
		sys.send(point.PublishTopic(), points(1, before)...)
		sys.settle("POINT", before)
		require.Eventually(t, func() bool { return sys.committed(point) == before }, 2*time.Minute, 50*time.Millisecond)

		p.Freeze()
		sys.send(point.PublishTopic(), points(before+1, all)...)
		visible, cancelled := 0, 0 // cancelled: waits after all rows were visible
		require.Eventually(t, func() bool {
			n := p.CancelWaits()
			if visible == all {
				cancelled += n
			}
			require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM payouts`).Scan(&visible))
			return cancelled >= 20
		}, 2*time.Minute, 20*time.Millisecond, "the records are accepted again and again")
		require.EqualValues(t, before, sys.committed(point), "a record is acknowledged that the standby does not have")

		p.Promote()
		require.Equal(t, ledger.PayoutCounts{Accepted: all, Paid: all}, sys.settle("POINT", all).PayoutCounts)
		require.Eventually(t, func() bool { return sys.committed(point) == all }, 2*time.Minute, 50*time.Millisecond)
	})
}
