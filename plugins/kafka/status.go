package kafka

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/IBM/sarama"
)

// Names of topic settings, as Kafka has them.
const (
	configMaxMessageBytes = "max.message.bytes"
	configCleanupPolicy   = "cleanup.policy"
	configRetention       = "retention.ms"
	configMinInSync       = "min.insync.replicas"
)

// listedSettings returns those that the commands list.
func listedSettings() []string {
	return []string{configMaxMessageBytes, configCleanupPolicy, configRetention, configMinInSync}
}

// topicStatus is a topic that routes need, as the cluster has it.
type topicStatus struct {
	neededTopic
	Exists      bool              `json:"exists"`
	Partitions  int               `json:"partitions,omitempty"`
	Replication int               `json:"replication,omitempty"` // the least of all partitions
	Settings    map[string]string `json:"settings,omitempty"`    // by Kafka's names
	Problems    []string          `json:"problems"`
}

// maxMessageBytes returns the limit of the topic; ok is false when it is not known.
func (t *topicStatus) maxMessageBytes() (limit int, ok bool) {
	limit, err := strconv.Atoi(t.Settings[configMaxMessageBytes])
	return limit, err == nil
}

// problem adds what an operator should change.
func (t *topicStatus) problem(format string, args ...any) {
	t.Problems = append(t.Problems, fmt.Sprintf(format, args...))
}

// status returns the state of the needed topics, with what is wrong with each.
func (c *connection) status(needed []neededTopic) ([]*topicStatus, error) {
	described, err := c.describe(namesOf(needed)...)
	if err != nil {
		return nil, err
	}
	list := make([]*topicStatus, len(needed))
	var existing []*topicStatus
	for i, n := range needed {
		t := &topicStatus{neededTopic: n, Problems: []string{}}
		list[i] = t
		switch m := described[n.Name]; {
		case m == nil, m.Err == sarama.ErrUnknownTopicOrPartition:
			if !c.config.CreateTopics {
				t.problem("the topic does not exist")
			}
		case m.Err != sarama.ErrNoError && m.Err != sarama.ErrLeaderNotAvailable:
			t.problem("the cluster does not describe it: %s", m.Err)
		default:
			t.Exists, t.Partitions, t.Replication = true, len(m.Partitions), replication(m.Partitions)
			existing = append(existing, t)
		}
	}
	if err := c.readSettings(existing); err != nil {
		return nil, err
	}
	for _, t := range existing {
		c.check(t, list)
	}
	return list, nil
}

// replication returns the least number of replicas of a partition.
func replication(partitions []*sarama.PartitionMetadata) int {
	least := 0
	for i, p := range partitions {
		if i == 0 || len(p.Replicas) < least {
			least = len(p.Replicas)
		}
	}
	return least
}

// readSettings fills in the settings of topics. The right to read them may be missing: that is a
// problem of the topic.
func (c *connection) readSettings(topics []*topicStatus) error {
	admin, err := sarama.NewClusterAdminFromClient(c.client)
	if err != nil {
		return err
	}
	resources := make([]*sarama.ConfigResource, len(topics))
	for i, t := range topics {
		resources[i] = &sarama.ConfigResource{
			Type: sarama.TopicResource, Name: t.Name, ConfigNames: listedSettings(),
		}
	}
	results, err := admin.DescribeConfigs(resources, sarama.DescribeConfigsOptions{})
	if err != nil {
		return err
	}
	for _, t := range topics {
		i := slices.IndexFunc(results, func(r *sarama.ConfigResourceResult) bool { return r.Name == t.Name })
		if i < 0 {
			t.problem("its settings can't be read: no answer")
			continue
		}
		if code := results[i].ErrorCode; code != sarama.ErrNoError {
			t.problem("its settings can't be read: %s", code)
			continue
		}
		t.Settings = map[string]string{}
		for _, entry := range results[i].Configs {
			t.Settings[entry.Name] = entry.Value
		}
	}
	return nil
}

// check reports the properties of an existing topic that are below the settings, or lose records.
func (c *connection) check(t *topicStatus, all []*topicStatus) {
	if want := int(c.config.Partitions); t.isRead && t.Partitions < want {
		t.problem("partition count is %d, plugins.kafka.partitions is %d", t.Partitions, want)
	}
	if want := int(c.config.ReplicationFactor); t.Replication < want {
		t.problem("replica count is %d, plugins.kafka.replication_factor is %d", t.Replication, want)
	}
	if problem, _ := t.inSyncProblem(); problem != "" {
		t.problem("%s", problem)
	}
	roles := t.roles()
	if !slices.Contains(roles, roleRetry) && !slices.Contains(roles, roleDeadLetter) {
		return
	}
	if policy := t.Settings[configCleanupPolicy]; strings.Contains(policy, "compact") {
		t.problem("%s is %s: a record replaces the earlier ones with its key", configCleanupPolicy, policy)
	}
	t.checkRetention()
	limit, known := t.maxMessageBytes()
	if largest := c.largestFed(t, all); known && limit < largest+headerAllowance {
		t.problem("%s is %d, and must be at least %d: records have up to %d bytes, and up to %d more of headers", configMaxMessageBytes, limit, largest+headerAllowance, largest, headerAllowance)
	}
}

// inSyncProblem returns why min.insync.replicas refuses or loses records of the topic, and what to do about it. It is
// empty when the setting does neither, or is not known.
func (t *topicStatus) inSyncProblem() (problem, remedy string) {
	n, err := strconv.Atoi(t.Settings[configMinInSync])
	least := leastInSync(t.Replication)
	remedy = fmt.Sprintf("set %s of the topic to %d", configMinInSync, least)
	switch {
	case err != nil:
	case n > t.Replication && t.Replication <= safeReplicas:
		remedy += ", or give it three replicas"
		fallthrough
	case n > t.Replication:
		return fmt.Sprintf("%s is %d, and replica count is %d: Kafka before 3.7 takes no record, and newer versions need all replicas", configMinInSync, n, t.Replication), remedy
	case n < least:
		return fmt.Sprintf("%s is %d, and must be at least %d: a record that one broker alone has is acknowledged", configMinInSync, n, least), remedy
	}
	return "", ""
}

// inSyncRisk returns what the failure of one broker does to a topic that works until then, and what to do about it. A
// single replica is told by itself.
func (t *topicStatus) inSyncRisk() (risk, remedy string) {
	n, err := strconv.Atoi(t.Settings[configMinInSync])
	if err != nil || t.Replication < safeReplicas {
		return "", ""
	}
	remedy = "give the topic three replicas and " + configMinInSync + " 2"
	if t.Replication > safeReplicas {
		remedy = "set " + configMinInSync + " of the topic to 2"
	}
	switch {
	case n == t.Replication:
		return fmt.Sprintf("%s is %d, and replica count is %d: no record can be published while one broker is away", configMinInSync, n, t.Replication), remedy
	case t.Replication == safeReplicas && n < safeReplicas:
		return fmt.Sprintf("%s is %d, and replica count is %d: a record that one broker alone has is acknowledged", configMinInSync, n, t.Replication), remedy
	}
	return "", ""
}

// largestFed is the size of the largest record that a retry or dead-letter topic may get, without
// our headers. It is the limit of the topics it comes from, or max_message_bytes where that is not
// known. Records over max_message_bytes are never published here.
func (c *connection) largestFed(t *topicStatus, all []*topicStatus) int {
	largest := 0
	for _, from := range all {
		if slices.Contains(from.roles(), roleRetry) || !slices.Contains(t.feeds, from.Name) {
			continue // the records of a retry topic have the headers already
		}
		limit, known := from.maxMessageBytes()
		if !known {
			return c.config.MaxMessageBytes
		}
		largest = max(largest, limit)
	}
	if largest == 0 {
		return c.config.MaxMessageBytes
	}
	return min(largest, c.config.MaxMessageBytes)
}
