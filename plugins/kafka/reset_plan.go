package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Words for a place.
const (
	placeOldest = "oldest"
	placeNewest = "newest"
)

// place is where a group is set to: the word, the time, the offset of a topic with one partition, or offsets by partition.
type place struct {
	word    string
	at      time.Time
	alone   *int64
	offsets map[int32]int64
}

// parsePlace reads the value of --to. The error is an *operate.InputError.
func parsePlace(text string, now time.Time) (to place, err error) {
	refuse := func(problem string) (place, error) {
		return place{}, &operate.InputError{Problem: "--to " + problem + ", got " + strconv.Quote(text), Field: "to"}
	}
	if text == placeOldest || text == placeNewest {
		return place{word: text}, nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
		return place{alone: &n}, nil
	}
	if strings.Contains(text, "=") {
		to.offsets = map[int32]int64{}
		for part := range strings.SplitSeq(text, ",") {
			left, right, _ := strings.Cut(strings.TrimSpace(part), "=")
			partition, err := strconv.ParseInt(left, 10, 32)
			offset, wrong := strconv.ParseInt(right, 10, 64)
			_, twice := to.offsets[int32(partition)]
			if err != nil || wrong != nil || partition < 0 || offset < 0 || twice {
				return refuse("must have each partition once with its offset, such as 0=120,1=95")
			}
			to.offsets[int32(partition)] = offset
		}
		return to, nil
	}
	if age, err := time.ParseDuration(text); err == nil {
		to.at = now.Add(-age)
	} else if to.at, err = time.Parse(time.RFC3339, text); err != nil {
		return refuse("must be a time such as 2026-03-04T05:06:07Z, an age such as 2h, oldest, newest, or offsets such as 0=120,1=95")
	}
	if to.at.After(now) {
		return refuse("must not be in the future; newest skips what is in the topic now")
	}
	if to.at.Before(time.UnixMilli(0)) {
		return refuse("must be after 1970")
	}
	to.at = to.at.UTC().Truncate(time.Millisecond) // as Kafka has times
	return to, nil
}

// String says what the place is.
func (p place) String() string {
	switch {
	case p.word == placeOldest:
		return "its oldest records"
	case p.word == placeNewest:
		return "its end"
	case p.at.IsZero():
		return "the given offsets"
	}
	return p.at.Format(time.RFC3339Nano)
}

// in returns the offset of the place in a partition. set is false when it stays where it is.
func (p place) in(live *connection, r *partitionScan, partitions int) (offset int64, set bool, err error) {
	given, set := p.offsets[r.partition]
	switch {
	case p.word == placeOldest:
		return r.offset, true, nil
	case p.word == placeNewest:
		return r.end, true, nil
	case !p.at.IsZero():
		offset, err = live.client.GetOffset(r.topic, r.partition, p.at.UnixMilli())
		if offset < 0 { // no record is that late
			offset = r.end
		}
		return offset, true, err
	case p.alone != nil && partitions > 1:
		return 0, false, &operate.InputError{Field: "to", Problem: fmt.Sprintf("topic %s has %d partitions, so --to must name the partition of each offset, such as 0=%d", r.topic, partitions, *p.alone)}
	case p.alone != nil:
		given, set = *p.alone, true
	}
	if set && (given < r.offset || given > r.end) {
		err = &operate.InputError{Field: "to", Problem: fmt.Sprintf("partition %d has the offsets %d to %d, got %d", r.partition, r.offset, r.end, given)}
	}
	return given, set, err
}

// resetPlan is a reset that was not done.
type resetPlan struct {
	report resetReport
	short  []int32 // partitions that may have had earlier records of the time
}

// planReset reads what a reset of the group would change. The error is an *operate.InputError for a place that the
// topic does not have.
func (c *connection) planReset(topic, group string, to place) (plan resetPlan, err error) {
	described, err := c.describe(topic)
	if err != nil {
		return plan, err
	}
	t := described[topic]
	if t == nil || t.Err == sarama.ErrUnknownTopicOrPartition {
		return plan, sarama.ErrUnknownTopicOrPartition
	}
	// The ids are read before the offsets, so that a commit never names a topic that its offset is not of.
	ids, idOf := map[int32]topicID{}, leaderTopicID(c.client)
	for _, partition := range t.Partitions {
		if ids[partition.ID], err = idOf(topic, partition.ID); err != nil {
			return plan, err
		}
	}
	admin, err := sarama.NewClusterAdminFromClient(c.client)
	if err != nil {
		return plan, err
	}
	plan.report = resetReport{Topic: topic, Group: group, Partitions: []resetPartition{}}
	if plan.report.Members, err = c.members(admin, group); err != nil {
		return plan, fmt.Errorf("describe the group %s: %w", group, err)
	}
	readers, _, err := c.scanners(topic, nil)
	if err != nil {
		return plan, err
	}
	commits, err := groupCommits(admin, group, topic, slices.Collect(maps.Keys(ids)))
	if err != nil {
		return plan, fmt.Errorf("read the commits of the group %s: %w", group, err)
	}
	for i := range readers {
		r := &readers[i]
		id, known := ids[r.partition]
		offset, set, err := to.in(c, r, len(readers))
		if err != nil {
			return plan, err
		}
		if !set || !known { // the partition was added a moment ago
			continue
		}
		if !to.at.IsZero() && r.offset > 0 && offset == r.offset {
			plan.short = append(plan.short, r.partition)
		}
		commit, committed := commits[r.partition]
		plan.report.add(c.resetOf(r, commit, committed, id, offset))
	}
	for partition := range to.offsets {
		if _, known := ids[partition]; !known {
			return plan, &operate.InputError{Field: "to", Problem: fmt.Sprintf("topic %s has no partition %d; it has %d", topic, partition, len(readers))}
		}
	}
	if !to.at.IsZero() {
		plan.report.Time = &to.at
		return plan, c.checkPlace(topic, to, plan.short)
	}
	return plan, nil
}

// add adds a partition, and its numbers to the sums.
func (r *resetReport) add(one resetPartition) {
	r.Changed, r.Again, r.Skipped = r.Changed || one.changed, r.Again+one.Again, r.Skipped+one.Skipped
	r.Partitions = append(r.Partitions, one)
}

// resetOf says what the new offset of a partition changes for the group. Records that the commit names as done beyond
// it are handled again, unless they are before the new offset: the new commit names none of them. It keeps the deaths of
// processes that ran a record, because the record may still be a deadly one.
func (c *connection) resetOf(r *partitionScan, commit progress, committed bool, id topicID, offset int64) resetPartition {
	one := resetPartition{Partition: r.partition, Offset: offset, commit: progress{base: offset, topic: id}}
	next := c.goesOn(r, commit, committed, id)
	from, done := next.base, next.done.between(next.base, r.end)
	one.commit.counts = maps.Clone(next.counts)
	maps.DeleteFunc(one.commit.counts, func(of int64, _ int) bool { return of < offset })
	if committed {
		one.Committed = &commit.base
	}
	one.Again = max(from-offset, 0) + int64(len(done.between(max(from, offset), r.end)))
	one.Skipped = max(offset-from, 0) - int64(len(done.between(from, offset)))
	one.changed = !committed || commit.base != offset || commit.topic.differs(id) || len(commit.done) > 0
	return one
}

// checkPlace refuses a time before the retention of a topic, of which partitions have lost records.
func (c *connection) checkPlace(topic string, to place, short []int32) error {
	if len(short) == 0 {
		return nil
	}
	t := &topicStatus{neededTopic: neededTopic{Name: topic}}
	if err := c.readSettings([]*topicStatus{t}); err != nil {
		return err
	}
	if kept := t.retention(); kept > 0 && to.at.Before(time.Now().Add(-kept)) {
		return &operate.InputError{Field: "to", Problem: fmt.Sprintf("topic %s keeps records for %s, and those of %s were removed from partition %s; oldest begins with what is left",
			topic, kept, to, numbers(short))}
	}
	return nil
}

// members returns the active members of a group.
func (c *connection) members(admin sarama.ClusterAdmin, group string) ([]groupMember, error) {
	if err := c.client.RefreshCoordinator(group); err != nil {
		return nil, err
	}
	described, err := admin.DescribeConsumerGroups([]string{group})
	if err != nil {
		return nil, err
	}
	members := []groupMember{}
	for _, g := range described {
		if g.Err != sarama.ErrNoError && g.Err != sarama.ErrGroupIDNotFound {
			return nil, g.Err
		}
		for _, m := range g.Members {
			one := groupMember{ID: m.MemberId, Client: m.ClientId, Host: strings.TrimPrefix(m.ClientHost, "/"), Topics: []string{}}
			if m.GroupInstanceId != nil {
				one.Instance = *m.GroupInstanceId
			}
			if meta, err := m.GetMemberMetadata(); err == nil && meta != nil {
				one.Topics = append(one.Topics, meta.Topics...)
			}
			members = append(members, one)
		}
	}
	sorted.By(members, func(a, b groupMember) int { return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID)) })
	return members, nil
}

// groupCommits returns the commits of a group. A partition without one is not among them.
func groupCommits(admin sarama.ClusterAdmin, group, topic string, partitions []int32) (map[int32]progress, error) {
	answer, err := admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: partitions})
	switch {
	case errors.Is(err, sarama.ErrGroupIDNotFound):
		return nil, nil // it has committed nothing
	case err != nil:
		return nil, err
	case answer.Err == sarama.ErrGroupIDNotFound:
		return nil, nil
	case answer.Err != sarama.ErrNoError:
		return nil, answer.Err
	}
	commits := map[int32]progress{}
	for _, partition := range partitions {
		block := answer.GetBlock(topic, partition)
		switch {
		case block == nil:
			return nil, sarama.ErrIncompleteResponse
		case block.Err != sarama.ErrNoError && block.Err != sarama.ErrGroupIDNotFound:
			return nil, block.Err
		case block.Offset >= 0:
			commits[partition] = decodeProgress(block.Offset, block.Metadata)
		}
	}
	return commits, nil
}

// commitReset sets the commits of a group without members. Its coordinator refuses them when a member has joined.
func (c *connection) commitReset(r resetReport) error {
	admin, err := sarama.NewClusterAdminFromClient(c.client)
	if err != nil {
		return answered(err)
	}
	offsets := map[int32]sarama.OffsetAndMetadata{}
	for _, one := range r.Partitions {
		if one.changed {
			offsets[one.Partition] = sarama.OffsetAndMetadata{Offset: one.Offset, Metadata: encodeProgress(one.commit), LeaderEpoch: -1}
		}
	}
	answer, err := admin.AlterConsumerGroupOffsets(r.Group, map[string]map[int32]sarama.OffsetAndMetadata{r.Topic: offsets}, nil)
	if err != nil {
		return fmt.Errorf("reset the group %s (a dry run shows what is committed): %w", r.Group, answered(err))
	}
	var failed []error
	for partition := range offsets {
		switch err := answer.Errors[r.Topic][partition]; err {
		case sarama.ErrNoError:
		case sarama.ErrUnknownMemberId, sarama.ErrIllegalGeneration, sarama.ErrRebalanceInProgress:
			return app.Bad("a member has joined the group %s meanwhile, so nothing was changed: stop every instance that reads with it, and repeat", r.Group)
		default:
			failed = append(failed, fmt.Errorf("partition %d: %w", partition, err))
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("kafka: reset the group %s (a dry run shows what is committed): %w", r.Group, errors.Join(failed...))
	}
	return nil
}
