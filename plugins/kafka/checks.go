package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

const (
	runbookPublish = "configs/RUNBOOK.md, MillraceKafkaPublishErrors"
	topicsPage     = "plugins/kafka/README.md#topics"
)

// Examinations implements operate.Examined.
func (p *Plugin) Examinations() []operate.Examination {
	return []operate.Examination{{
		Place: pluginName, Remedy: "start the brokers, or correct their addresses, the credentials, and whether they speak TLS (tls.enabled) in the settings", Runbook: runbookPublish,
		Open: func(ctx context.Context) ([]operate.Examine, func(), error) {
			config := p.snapshot()
			config.DialTimeout, config.RequestTimeout = min(config.DialTimeout, operate.CheckLimit), min(config.RequestTimeout, operate.CheckLimit)
			conf, err := adminConfig(config, p.log)
			if err != nil {
				return nil, nil, fmt.Errorf("kafka: %w", err)
			}
			client, err := connect(ctx, config, conf)
			if err != nil {
				return nil, nil, fmt.Errorf("%w: no broker at %s answered: %w", errUnavailable, strings.Join(config.Brokers, ","), err)
			}
			if err := client.Close(); err != nil {
				return nil, nil, fmt.Errorf("kafka: %w", err)
			}
			// Each has a client of its own: sarama answers that a broker is not connected when another
			// goroutine has just begun to open it.
			read := func(what string, do func(context.Context, *connection) ([]operate.Check, error)) operate.Examine {
				return operate.Examine{What: what, Read: func(ctx context.Context) ([]operate.Check, error) {
					client, err := sarama.NewClient(config.Brokers, conf)
					if err != nil {
						return nil, answered(err)
					}
					live := newConnection(config, client, nil, p.carriesMore)
					defer func() { _ = live.close(context.WithoutCancel(ctx)) }() // it has published nothing
					checks, err := do(ctx, live)
					if err != nil && !errors.Is(err, pipeline.ErrUnavailable) {
						err = answered(err)
					}
					return checks, err
				}}
			}
			return []operate.Examine{
				read("brokers", readBrokers), read("topics", p.readTopics), read("retention", p.readRetention), read("delays", p.readDelays),
				read("groups", p.readGroups), read("clock", p.readClock),
			}, nil, nil
		},
	}}
}

// apiOf28 is the key of DescribeCluster, which Kafka 2.8 introduced. Brokers do not tell their version.
const apiOf28 = 60

func readBrokers(_ context.Context, live *connection) ([]operate.Check, error) {
	brokers := live.client.Brokers()
	old := make([]bool, len(brokers))
	errs := make([]error, len(brokers))
	var asking sync.WaitGroup
	for i, b := range brokers {
		asking.Go(func() {
			if err := b.Open(live.client.Config()); err != nil && !errors.Is(err, sarama.ErrAlreadyConnected) {
				errs[i] = err
				return
			}
			r, err := b.ApiVersions(&sarama.ApiVersionsRequest{})
			errs[i] = err
			if err == nil {
				old[i] = !slices.ContainsFunc(r.ApiKeys, func(k sarama.ApiVersionsResponseKey) bool { return k.ApiKey == apiOf28 })
			}
		})
	}
	asking.Wait()
	states := make([]brokerState, len(brokers))
	for i, b := range brokers {
		states[i] = brokerState{b.Addr(), old[i], errs[i]}
	}
	return brokersCheck(states), nil
}

type brokerState struct {
	addr string
	old  bool // it is older than 2.8
	err  error
}

func brokersCheck(brokers []brokerState) (checks []operate.Check) {
	sorted.By(brokers, func(a, b brokerState) int { return cmp.Compare(a.addr, b.addr) })
	for _, b := range brokers {
		switch {
		case b.err != nil:
			checks = append(checks, operate.Check{
				Level: operate.Fail, Text: fmt.Sprintf("%s does not answer: %s", b.addr, b.err),
				Remedy: "start the broker, or make the address that it advertises reachable", Runbook: runbookPublish,
			})
		case b.old:
			checks = append(checks, operate.Check{Level: operate.Fail, Text: b.addr + " is older than Kafka 2.8", Remedy: "upgrade it to Kafka 2.8 or newer"})
		}
	}
	if len(checks) == 0 {
		checks = []operate.Check{{Level: operate.OK, Text: fmt.Sprintf("%d of %d answer, with Kafka 2.8 or newer", len(brokers), len(brokers))}}
	}
	return checks
}

// readTopics reports what the command topics reports, and what works and is no safe choice.
func (p *Plugin) readTopics(_ context.Context, live *connection) ([]operate.Check, error) {
	topics, err := live.status(neededTopics(p.routes))
	if err != nil {
		return nil, err
	}
	return topicChecks(topics, live.config.MaxMessageBytes), nil
}

const safeReplicas = 2 // with one, the loss of a broker loses records

func topicChecks(topics []*topicStatus, maxMessageBytes int) (checks []operate.Check) {
	var absent int
	var single []string
	for _, t := range topics {
		delays := t.delayProblems()
		for _, problem := range t.Problems {
			if slices.Contains(delays, problem) { // delayChecks says so
				continue
			}
			c := operate.Check{
				Level: operate.Fail, Text: t.String() + ": " + problem,
				Remedy: "change the topic, or the settings; the command topics create creates missing ones", Runbook: topicsPage,
			}
			if inSync, remedy := t.inSyncProblem(); problem == inSync {
				c.Remedy = remedy
			}
			checks = append(checks, c)
		}
		if !t.Exists {
			absent++
			continue
		}
		if t.Replication < safeReplicas {
			single = append(single, t.Name)
		}
		if risk, remedy := t.inSyncRisk(); risk != "" {
			checks = append(checks, operate.Check{Level: operate.Warn, Text: t.String() + ": " + risk, Remedy: remedy, Runbook: topicsPage})
		}
		writes := slices.ContainsFunc(t.Uses, func(u topicUse) bool { return u.Role != roleSource })
		if limit, known := t.maxMessageBytes(); writes && known && limit < maxMessageBytes {
			checks = append(checks, operate.Check{
				Level: operate.Warn, Text: fmt.Sprintf("%s: %s is %d, and plugins.kafka.max_message_bytes is %d, so larger records are refused", t, configMaxMessageBytes, limit, maxMessageBytes),
				Remedy: "raise the limit of the topic, or lower the setting",
			})
		}
	}
	if len(single) > 0 {
		checks = append(checks, operate.Check{
			Level: operate.Warn, Text: "one replica, so the loss of a broker loses the records: " + strings.Join(single, ", "),
			Remedy: "give the topics three replicas and min.insync.replicas 2, and set plugins.kafka.replication_factor to 3",
		})
	}
	if len(checks) > 0 {
		return checks
	}
	text := fmt.Sprintf("%d are in order", len(topics)-absent)
	if absent > 0 {
		text += fmt.Sprintf(", and %d are created on first use", absent)
	}
	return []operate.Check{{Level: operate.OK, Text: text}}
}

// groups returns the sources of the routes that are read by a group, each once.
func (p *Plugin) groups() (list []groupSource) {
	for _, r := range p.routes.Routes() {
		if g, ok := r.From.(groupSource); ok && !slices.Contains(list, g) {
			list = append(list, g)
		}
	}
	return list
}

// readRetention compares the age of the oldest record that a group has not handled with the time for
// which the topic keeps it.
func (p *Plugin) readRetention(ctx context.Context, live *connection) ([]operate.Check, error) {
	topics, err := live.status(neededTopics(p.routes))
	if err != nil {
		return nil, err
	}
	ctx = context.WithValue(ctx, sharedConnection{}, live)
	var list []agedBacklog
	for _, g := range p.groups() {
		i := slices.IndexFunc(topics, func(t *topicStatus) bool { return t.Name == g.topic && t.Exists })
		if i < 0 || topics[i].retention() == 0 {
			continue
		}
		b, err := g.Backlog(ctx)
		if err != nil {
			return retentionChecks(list, time.Now()), fmt.Errorf("topic %s: %w", g.topic, err)
		}
		list = append(list, agedBacklog{g, b.Oldest, topics[i].retention()})
	}
	return retentionChecks(list, time.Now()), nil
}

// agedBacklog is what a group has not handled, and for how long the topic keeps it.
type agedBacklog struct {
	groupSource
	oldest time.Time
	kept   time.Duration
}

func retentionChecks(list []agedBacklog, now time.Time) (checks []operate.Check) {
	for _, b := range list {
		age := now.Sub(b.oldest)
		if b.oldest.IsZero() || age < b.kept/2 {
			continue
		}
		c := operate.Check{
			Level: operate.Warn, Remedy: "let the group catch up, or raise retention.ms of the topic", Runbook: "configs/RUNBOOK.md, MillraceKafkaLag",
			Text: fmt.Sprintf("the oldest record of %s that group %s has not handled is %s old, and the topic keeps records for %s", b.topic, b.group, age.Round(time.Second), b.kept),
		}
		if age >= b.kept/10*9 {
			c.Level = operate.Fail
		}
		checks = append(checks, c)
	}
	if len(checks) == 0 {
		checks = []operate.Check{{Level: operate.OK, Text: fmt.Sprintf("no backlog of %d topics with a limit is near it", len(list))}}
	}
	return checks
}

// readDelays compares the longest delay of each route with the time for which its retry topic keeps a record, as the
// start does, which ends with such a delay.
func (p *Plugin) readDelays(_ context.Context, live *connection) ([]operate.Check, error) {
	topics, err := live.status(neededTopics(p.routes))
	if err != nil {
		return nil, err
	}
	return delayChecks(topics), nil
}

func delayChecks(topics []*topicStatus) (checks []operate.Check) {
	known, longest := 0, time.Duration(0)
	for _, t := range topics {
		if len(t.delays) == 0 || t.Settings[configCleanupPolicy] == "" { // what is not known is not checked
			continue
		}
		known++
		for _, d := range t.delays {
			longest = max(longest, d.longest)
		}
		for _, d := range t.tooLong() {
			checks = append(checks, operate.Check{
				Level: operate.Fail, Text: t.Name + ": " + t.textOf(d) + ", and no process starts with it",
				Remedy: remedyOfDelay, Runbook: "plugins/kafka/README.md#records-that-are-due-later",
			})
		}
	}
	switch {
	case len(checks) > 0:
		return checks
	case known == 0:
		return []operate.Check{{Level: operate.OK, Text: "no retry topic is known"}}
	}
	return []operate.Check{{Level: operate.OK, Text: fmt.Sprintf("%d of %d retry topics keep records for longer than each delay, of which the longest is %s", known, known, longest)}}
}

func (p *Plugin) readGroups(_ context.Context, live *connection) ([]operate.Check, error) {
	var names []string
	for _, g := range p.groups() {
		if !slices.Contains(names, g.group) {
			names = append(names, g.group)
		}
	}
	if len(names) == 0 {
		return []operate.Check{{Level: operate.OK, Text: "no route reads with a group"}}, nil
	}
	admin, err := sarama.NewClusterAdminFromClient(live.client)
	if err != nil {
		return nil, err
	}
	described, err := admin.DescribeConsumerGroups(names)
	if err != nil {
		return nil, err
	}
	return groupChecks(described), nil
}

func groupChecks(groups []*sarama.GroupDescription) (checks []operate.Check) {
	unread, moving, refused := []string{}, []string{}, []string{}
	for _, g := range groups {
		switch {
		case g.Err != sarama.ErrNoError && g.Err != sarama.ErrGroupIDNotFound:
			refused = append(refused, fmt.Sprintf("%s (%s)", g.GroupId, g.Err))
		case len(g.Members) == 0:
			unread = append(unread, g.GroupId)
		case g.State != "Stable":
			moving = append(moving, fmt.Sprintf("%s (%s)", g.GroupId, g.State))
		}
	}
	add := func(level operate.Level, groups []string, text, remedy, runbook string) {
		if len(groups) > 0 {
			slices.Sort(groups)
			checks = append(checks, operate.Check{Level: level, Text: text + strings.Join(groups, ", "), Remedy: remedy, Runbook: runbook})
		}
	}
	add(operate.Fail, refused, "not described: ", "grant the user Describe for these groups", "plugins/kafka/README.md#configuration")
	add(operate.Warn, unread, "no instance reads as ", "start an instance, or switch off the plugins whose routes nobody runs", "configs/RUNBOOK.md, MillraceNoInstanceRuns")
	add(operate.Warn, moving, "share partitions at this moment: ", "look again, and if it goes on, look for members that leave and come back", "configs/RUNBOOK.md, MillraceKafkaLag")
	if len(checks) == 0 {
		checks = []operate.Check{{Level: operate.OK, Text: fmt.Sprintf("%d of %d have members", len(groups), len(groups))}}
	}
	return checks
}

var _ operate.Examined = (*Plugin)(nil)
