package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/e2e/services/servers"
)

// memoryLimit bounds the resident memory of an instance, in bytes.
const memoryLimit = 300 << 20

// nearTheLimit is a record that its topic just takes. With the headers of a dead letter it is
// larger than that.
const nearTheLimit = 2<<20 - 300

// padded is a JSON object of n bytes that is no payout.
func padded(n int) []byte {
	const begin, end = `{"promotionId":1,"x":"`, `"}`
	return []byte(begin + strings.Repeat("x", n-len(begin)-len(end)) + end)
}

// compressed publishes a campaign with zstd whose records shrink a hundredfold, and among them some
// of 900 kB.
func (t *caseRun) compressed(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(t.fleet.server(t.t, servers.Kafka)), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchCompression(kgo.ZstdCompression()), kgo.ProducerBatchMaxBytes(4<<20))
	if err != nil {
		return err
	}
	defer func(before *kgo.Client) {
		client.Close()
		t.kafka, t.padding = before, 0
	}(t.kafka)
	t.kafka, t.padding = client, 30_000
	if err := t.publish(ctx, t.c.Targets/2); err != nil {
		return err
	}
	var large []*kgo.Record
	for i := range t.c.Targets / 5 {
		large = append(large, &kgo.Record{Topic: t.work.source(), Key: fmt.Appendf(nil, "%d", i), Value: padded(900_000)})
		t.letters["too_large"]++
	}
	if _, err := t.produce(ctx, large); err != nil {
		return err
	}
	if err := errors.Join(t.publish(ctx, t.c.Targets/2), t.settledShare(ctx, 100)); err != nil {
		return err
	}
	for _, m := range t.members {
		peak, err := peakMemory(m.cmd.Process.Pid)
		if err != nil {
			return err
		}
		t.note("%s had at most %d MiB", m.name, peak>>20)
		if peak > memoryLimit {
			return &brokenError{"memory is bounded", fmt.Errorf("%s had %d MiB, the limit is %d", m.name, peak>>20, memoryLimit>>20)}
		}
	}
	return nil
}

// peakMemory returns the most resident memory that a process has had so far, in bytes.
func peakMemory(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, errors.New("no VmHWM in the process status")
}
