package ledger_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A payout from its record to paid, as the promotion processor does it.
func Example() {
	dir, err := os.MkdirTemp("", "ledger")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx := context.Background()
	cfg := ledger.DefaultConfig()
	cfg.DSN = setting.NewSecret("sqlite:" + filepath.Join(dir, "ledger.db"))
	l, err := ledger.Open(ctx, cfg, ledger.Options{Instance: "host-1", Lease: 8 * time.Second}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := l.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	records := []payouts.Record{{Key: payouts.Key{Type: "POINT", Promotion: 12345, Target: 777}, SummaryID: 9,
		Payload: []byte(`{"promotionId":12345,"promotionSummaryId":9,"targetId":777,"amount":500}`)}}
	accepted := l.Accept(ctx, records, ledger.AcceptOptions{})[0]
	if accepted.Err != nil {
		log.Fatal(accepted.Err)
	}
	fmt.Println("accept:", accepted.Next)

	begin, err := l.Begin(ctx, records[0]) // a worker has read the stream entry
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("begin:", begin.Next, "attempt", begin.Attempt, "for", begin.Lease)

	settled, err := l.Settle(ctx, payouts.CallResult{Key: records[0].Key, CallResult: rules.CallResult{Epoch: begin.Epoch, Outcome: rules.Done, Receipt: "T-1"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("settle:", settled.Next, settled.State)

	again := l.Accept(ctx, records, ledger.AcceptOptions{})[0] // Kafka delivers it again
	if again.Err != nil {
		log.Fatal(again.Err)
	}
	fmt.Println("again:", again.Next)
	// Output:
	// accept: enqueue
	// begin: send attempt 1 for 8s
	// settle: ack SUCCESS
	// again: settled
}
