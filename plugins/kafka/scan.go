package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// Scanned is one record that Scan has read. Key and Value are valid during the call only.
type Scanned struct {
	Partition int32
	Offset    int64
	Time      time.Time // of the record
	Key       []byte
	Value     []byte

	headers []*sarama.RecordHeader
}

// Scan is what a scan has read.
type Scan struct {
	Partitions int
	Records    int64
	// Beginning: no partition had lost its first records to retention, so that nothing was ever in
	// the topic that was not read here.
	Beginning bool
}

const (
	scanBytes = 64 << 10               // of one request, before decompression
	scanWait  = 500 * time.Millisecond // that a broker may take to answer when it has nothing
	scanTries = 20                     // consecutive failures that end the scan of a partition
	scanTells = 3                      // consecutive answers without a record before the log says why
)

// Scan reads every record that is in topic now, from the beginning of each partition to its
// present end, and calls each for it. It reads one partition after the other, in order of offset,
// without aborted transactions. It belongs to no group and commits nothing. An error of each ends
// it and is returned unchanged. The end of ctx and the service's stop end it too.
// So does a partition that became shorter than what was read of it (sarama.ErrOffsetOutOfRange).
// Its memory does not depend on the topic's size.
func (p *Plugin) Scan(ctx context.Context, topic string, each func(Scanned) error) (Scan, error) {
	live, err := p.connected()
	if err != nil {
		return Scan{}, fmt.Errorf("kafka: scan %s: %w", topic, err)
	}
	if !live.begin() {
		return Scan{}, fmt.Errorf("kafka: scan %s: %w", topic, errNotStarted)
	}
	defer live.work.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	detach := context.AfterFunc(live.ctx, cancel)
	defer detach()
	readers, scan, err := live.scanners(topic, p.log)
	if err != nil {
		return *scan, scanFailed(topic, err)
	}
	err = scanPartitions(ctx, readers, each)
	return *scan, err
}

// scanners returns a scan per partition, from its beginning to its present end.
func (c *connection) scanners(topic string, log *slog.Logger) ([]partitionScan, *Scan, error) {
	scan := &Scan{Beginning: true}
	if err := c.client.RefreshMetadata(topic); err != nil {
		return nil, scan, err
	}
	partitions, err := c.client.Partitions(topic)
	if err != nil {
		return nil, scan, err
	}
	slices.Sort(partitions)
	scan.Partitions = len(partitions)
	readers := make([]partitionScan, len(partitions))
	for i, partition := range partitions {
		s := partitionScan{live: c, log: log, topic: topic, partition: partition, scan: scan}
		if s.end, err = c.client.GetOffset(topic, partition, sarama.OffsetNewest); err == nil {
			s.offset, err = c.client.GetOffset(topic, partition, sarama.OffsetOldest)
		}
		if err != nil {
			return nil, scan, err
		}
		scan.Beginning = scan.Beginning && s.offset == 0
		readers[i] = s
	}
	return readers, scan, nil
}

// scanPartitions runs scans one after the other.
func scanPartitions(ctx context.Context, readers []partitionScan, each func(Scanned) error) error {
	for i := range readers {
		readers[i].each = each
		if err := readers[i].run(ctx); err != nil {
			return err
		}
	}
	return nil
}

func scanFailed(topic string, err error) error {
	switch {
	case unreachable(err):
		return fmt.Errorf("%w: scan %s: %w", errUnavailable, topic, err)
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
		return fmt.Errorf("%w: scan %s: %w", ErrTopicMissing, topic, err)
	}
	return fmt.Errorf("kafka: scan %s: %w", topic, err)
}

// partitionScan reads one partition. sarama's consumer does not serve: a transaction's marker is no
// record, so it does not show its position when a marker is the last entry.
type partitionScan struct {
	live      *connection
	log       *slog.Logger
	topic     string
	partition int32
	offset    int64 // next to be read
	end       int64 // not to be read
	stable    int64 // the last stable offset of the last answer: from here on nothing can be read yet
	each      func(Scanned) error
	scan      *Scan
	size      int32 // of one request, in bytes
}

// callerError marks an error of the function that a scan calls.
type callerError struct{ error }

func (s *partitionScan) run(ctx context.Context) error {
	s.size = scanBytes
	for failed := 0; s.offset < s.end; {
		if ctx.Err() != nil {
			if s.live.ctx.Err() != nil {
				return scanFailed(s.topic, errNotStarted)
			}
			return scanFailed(s.topic, ctx.Err())
		}
		before := s.offset
		err := s.fetch()
		var own callerError
		switch {
		case errors.As(err, &own):
			return own.error
		case s.offset > before:
			failed = 0
			continue
		case errors.Is(err, sarama.ErrOffsetOutOfRange):
			oldest, offsetErr := s.live.client.GetOffset(s.topic, s.partition, sarama.OffsetOldest)
			switch {
			case offsetErr != nil:
				err = offsetErr
			case oldest > s.offset: // retention went past us
				s.offset, s.scan.Beginning = oldest, false
				continue
			default: // it is another log than the one that was read so far
				return scanFailed(s.topic, fmt.Errorf("partition %d: offset %d of %d: %w", s.partition, s.offset, s.end, err))
			}
		}
		failed++
		switch {
		case err != nil:
		case s.stable > s.offset:
			err = fmt.Errorf("offset %d of %d does not arrive", s.offset, s.end)
		default:
			err = fmt.Errorf("offsets %d to %d are hidden by an open producer transaction: find it with kafka-transactions.sh find-hanging, "+
				"end or abort it, and repeat", s.stable, s.end-1)
			if failed == scanTells {
				s.log.Warn("kafka scan waits for an open producer transaction to end; "+findTransaction, logs.Topic, s.topic,
					logs.Partition, s.partition, keyStable, s.stable, keyEnd, s.end)
			}
		}
		if fatal(err) || failed == scanTries {
			return scanFailed(s.topic, fmt.Errorf("partition %d: %w", s.partition, err))
		}
		if loop.Sleep(ctx, s.live.config.ReconnectBackoff.Delay(failed)) {
			_ = s.live.client.RefreshMetadata(s.topic) // the leader may have moved
		}
	}
	return nil
}

// fetch reads from the leader once and passes the records on.
func (s *partitionScan) fetch() error {
	leader, err := s.live.client.Leader(s.topic, s.partition)
	if err != nil {
		return err
	}
	// Version 4 is the first with this record format and the last that every broker speaks.
	req := &sarama.FetchRequest{Version: 4, MinBytes: 1, MaxBytes: s.size, MaxWaitTime: int32(scanWait.Milliseconds()), Isolation: sarama.ReadCommitted}
	req.AddBlock(s.topic, s.partition, s.offset, s.size, -1)
	resp, err := leader.Fetch(req)
	if err != nil {
		_ = leader.Close() // Leader opens it again
		return err
	}
	block := resp.GetBlock(s.topic, s.partition)
	switch {
	case block == nil:
		return errors.New("the broker left the partition out of its answer")
	case !errors.Is(block.Err, sarama.ErrNoError):
		return block.Err
	}
	s.stable = block.LastStableOffset
	return s.read(block)
}

func (s *partitionScan) read(block *sarama.FetchResponseBlock) error {
	started := slices.Clone(block.AbortedTransactions)
	sorted.By(started, func(a, b *sarama.AbortedTransaction) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	aborted := map[int64]bool{} // by producer
	for _, set := range block.RecordsSet {
		b := set.RecordBatch
		switch {
		case b == nil:
			return errors.New("records in a format older than Kafka 0.11 can't be scanned")
		case b.PartialTrailingRecord:
			s.size = min(2*s.size, sarama.MaxResponseSize/2) // one batch is larger than the request
			return nil
		}
		for len(started) > 0 && started[0].FirstOffset <= b.LastOffset() {
			aborted[started[0].ProducerID] = true
			started = started[1:]
		}
		switch {
		case b.Control:
			if isAbort(b) {
				delete(aborted, b.ProducerID)
			}
		case b.IsTransactional && aborted[b.ProducerID]:
		default:
			if err := s.records(b); err != nil {
				return err
			}
		}
		s.offset = max(s.offset, b.LastOffset()+1)
	}
	return nil
}

// isAbort reads a transaction's marker: its key is a version and a type, two bytes each, and type 0
// is an abort.
func isAbort(b *sarama.RecordBatch) bool {
	return len(b.Records) > 0 && len(b.Records[0].Key) >= 4 && b.Records[0].Key[2] == 0 && b.Records[0].Key[3] == 0
}

func (s *partitionScan) records(b *sarama.RecordBatch) error {
	for _, r := range b.Records {
		offset := b.FirstOffset + r.OffsetDelta
		if offset < s.offset || offset >= s.end { // a batch may begin before the requested offset
			continue
		}
		at := b.FirstTimestamp.Add(r.TimestampDelta)
		if b.LogAppendTime {
			at = b.MaxTimestamp
		}
		s.scan.Records++
		if err := s.each(Scanned{Partition: s.partition, Offset: offset, Time: at, Key: r.Key, Value: r.Value, headers: r.Headers}); err != nil {
			return callerError{err}
		}
	}
	return nil
}
