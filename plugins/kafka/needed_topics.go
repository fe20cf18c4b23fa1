package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// The roles that a topic can have in a route.
const (
	roleSource     = "source"
	roleOutput     = "output"
	roleRetry      = "retry"
	roleDeadLetter = "dead letter"
)

// neededTopic is a topic that routes use.
type neededTopic struct {
	Name   string     `json:"name"`
	Uses   []topicUse `json:"uses"`
	feeds  []string   // of a retry or dead-letter topic: where its records come from
	delays []retryDelay
	isRead bool
}

// topicUse is what one route uses a topic for.
type topicUse struct {
	Role  string `json:"role"`
	Route string `json:"route"`
}

// roles returns the roles of the topic, each once.
func (n neededTopic) roles() (roles []string) {
	for _, u := range n.Uses {
		if !slices.Contains(roles, u.Role) {
			roles = append(roles, u.Role)
		}
	}
	return roles
}

// String returns "name (role of route, route; role of route)".
func (n neededTopic) String() string {
	roles := n.roles()
	for i, role := range roles {
		var routes []string
		for _, u := range n.Uses {
			if u.Role == role {
				routes = append(routes, u.Route)
			}
		}
		roles[i] = role + " of " + strings.Join(routes, ", ")
	}
	return n.Name + " (" + strings.Join(roles, "; ") + ")"
}

// neededTopics returns the Kafka topics of the routes, in the order of the routes.
func neededTopics(routes []pipeline.Route) []neededTopic {
	var list []neededTopic
	use := func(e pipeline.Endpoint, role, route string) *neededTopic {
		i := slices.IndexFunc(list, func(n neededTopic) bool { return n.Name == e.Name })
		if i < 0 {
			i = len(list)
			list = append(list, neededTopic{Name: e.Name})
		}
		list[i].Uses = append(list[i].Uses, topicUse{role, route})
		return &list[i]
	}
	for _, r := range routes {
		from := r.From.Describe()
		if from.Kind == Kind {
			use(from, roleSource, r.Name).isRead = true
		}
		for _, sink := range []struct {
			to   pipeline.Sink
			role string
		}{{r.To, roleOutput}, {r.Policy.Retry.To, roleRetry}, {r.Policy.DeadLetter, roleDeadLetter}} {
			if sink.to == nil || sink.to.Describe().Kind != Kind {
				continue
			}
			n := use(sink.to.Describe(), sink.role, r.Name)
			if sink.role == roleRetry {
				n.delays = append(n.delays, retryDelay{r.Name, longestDelay(r.Policy.Retry)})
			}
			if sink.role != roleOutput && from.Kind == Kind {
				n.feeds = append(n.feeds, from.Name)
			}
		}
	}
	return list
}

// creatingCommand says how an operator creates a missing topic.
const creatingCommand = `plugins.kafka.create_topics is off: the command "topics create" creates the topics of all routes`

// missingTopicAttempts is how often a start looks for topics before it reports them as missing. A
// broker may learn of a new topic later than the broker that created it.
const missingTopicAttempts = 3

// routesService is the service of a process that may run routes. Where topics are not created, its
// start ends with ErrTopicMissing when a route needs a topic that does not exist: the route could
// never work. It also ends when a route delays a retry for longer than the retry topic keeps it.
type routesService struct{ service }

// Start is service.Start, followed by the checks of the topics.
func (s routesService) Start(ctx context.Context) error {
	if err := s.service.Start(ctx); err != nil {
		return err
	}
	err := s.plugin.checkTopics(ctx)
	if err == nil {
		err = s.plugin.checkRetention(ctx)
	}
	if err != nil {
		return errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return nil
}

// checkTopics returns ErrTopicMissing, with the topics and their routes, when topics are not
// created.
func (p *Plugin) checkTopics(ctx context.Context) error {
	live, err := p.connected()
	if err != nil {
		return err
	}
	needed := neededTopics(p.routes.Routes())
	if live.config.CreateTopics || len(needed) == 0 {
		return nil
	}
	for attempt, looks := 1, 0; ; attempt++ {
		missing, err := live.missing(needed)
		switch {
		case err == nil && len(missing) == 0:
			return nil
		case err == nil:
			looks++
		case !unreachable(err):
			return fmt.Errorf("kafka: look for the topics of the routes: %w", err)
		}
		if looks == missingTopicAttempts {
			return fmt.Errorf("%w: %s; %s", ErrTopicMissing, strings.Join(missing, ", "), creatingCommand)
		}
		if !loop.Sleep(ctx, live.config.ReconnectBackoff.Delay(attempt)) {
			return fmt.Errorf("%w: look for the topics of the routes: %w", errUnavailable, errors.Join(ctx.Err(), err))
		}
	}
}

// missing returns those of needed that do not exist.
func (c *connection) missing(needed []neededTopic) (names []string, err error) {
	described, err := c.describe(namesOf(needed)...)
	if err != nil {
		return nil, err
	}
	for _, n := range needed {
		switch t := described[n.Name]; {
		case t == nil, t.Err == sarama.ErrUnknownTopicOrPartition:
			names = append(names, n.String())
		case fatal(t.Err):
			return nil, fmt.Errorf("topic %s: %w", n, t.Err)
		}
	}
	return names, nil
}

func namesOf(needed []neededTopic) []string {
	names := make([]string, len(needed))
	for i, n := range needed {
		names[i] = n.Name
	}
	return names
}

// describe reads the topics from the cluster. One that does not exist has
// ErrUnknownTopicOrPartition.
func (c *connection) describe(names ...string) (map[string]*sarama.TopicMetadata, error) {
	admin, err := sarama.NewClusterAdminFromClient(c.client)
	if err != nil {
		return nil, err
	}
	described, err := admin.DescribeTopics(names)
	if err != nil {
		return nil, err
	}
	byName := map[string]*sarama.TopicMetadata{}
	for _, t := range described {
		byName[t.Name] = t
	}
	return byName, nil
}

var _ pipeline.Service = routesService{}
