package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// The roles that a topic can have in a route. One that a plugin declares with another use than
// pipeline.UseWrites or UseFollows has that use as its role.
const (
	roleSource     = "source"
	roleOutput     = "output"
	roleRetry      = "retry"
	roleDeadLetter = "dead letter"
)

// neededTopic is a topic that routes or plugins use.
type neededTopic struct {
	Name   string     `json:"name"`
	Uses   []topicUse `json:"uses"`
	feeds  []string   // of a retry or dead-letter topic: where its records come from
	delays []retryDelay
	isRead bool
}

// topicUse is what one route, or a plugin outside of its routes, uses a topic for.
type topicUse struct {
	Role   string `json:"role"`
	Route  string `json:"route,omitempty"`
	Plugin string `json:"plugin,omitempty"`
}

// user returns the route, or the word plugin and the name of the plugin.
func (u topicUse) user() string {
	if u.Plugin != "" {
		return "plugin " + u.Plugin
	}
	return u.Route
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

// String returns "name (role of route, route; role of plugin name)".
func (n neededTopic) String() string {
	roles := n.roles()
	for i, role := range roles {
		var users []string
		for _, u := range n.Uses {
			if u.Role == role {
				users = append(users, u.user())
			}
		}
		roles[i] = role + " of " + strings.Join(users, ", ")
	}
	return n.Name + " (" + strings.Join(roles, "; ") + ")"
}

// neededTopics returns the Kafka topics of the routes, in the order of the routes, and then those that
// plugins declare outside of their routes.
func neededTopics(reg *pipeline.Registry) []neededTopic {
	var list []neededTopic
	add := func(e pipeline.Endpoint, use topicUse) *neededTopic {
		i := slices.IndexFunc(list, func(n neededTopic) bool { return n.Name == e.Name })
		if i < 0 {
			i = len(list)
			list = append(list, neededTopic{Name: e.Name})
		}
		if !slices.Contains(list[i].Uses, use) {
			list[i].Uses = append(list[i].Uses, use)
		}
		return &list[i]
	}
	for _, r := range reg.Routes() {
		from := r.From.Describe()
		if from.Kind == Kind {
			add(from, topicUse{Role: roleSource, Route: r.Name}).isRead = true
		}
		type end struct {
			to   pipeline.Sink
			role string
		}
		var ends []end
		for _, o := range r.AllOutputs() {
			ends = append(ends, end{o.Sink, roleOutput})
		}
		for _, sink := range append(ends, end{r.Policy.Retry.To, roleRetry}, end{r.Policy.DeadLetter, roleDeadLetter}) {
			if sink.to == nil || sink.to.Describe().Kind != Kind {
				continue
			}
			n := add(sink.to.Describe(), topicUse{Role: sink.role, Route: r.Name})
			if sink.role == roleRetry {
				n.delays = append(n.delays, retryDelay{r.Name, longestDelay(r.Policy.Retry)})
			}
			if sink.role != roleOutput && from.Kind == Kind {
				n.feeds = append(n.feeds, from.Name)
			}
		}
	}
	roles := map[string]string{pipeline.UseWrites: roleOutput, pipeline.UseFollows: roleSource}
	for _, e := range reg.Endpoints() {
		if e.Kind == Kind && !isPattern(e.Name) {
			add(e.Endpoint, topicUse{Role: cmp.Or(roles[e.Use], e.Use), Plugin: e.Plugin})
		}
	}
	return list
}

// isPattern reports whether the name of an endpoint stands for many topics, such as orders-<country>.
func isPattern(name string) bool { return strings.Contains(name, "<") }

// How an operator creates a missing topic: one that neededTopics has, or another one.
const (
	creatingCommand = `plugins.kafka.create_topics is off: the command "topics create" creates the topics of all routes and plugins`
	creatingOther   = `plugins.kafka.create_topics is off, and the command "topics create" leaves this topic out, because no route and no plugin declares it: ` +
		`create it yourself, or declare it in the program with To or Outputs of a Route, or with Registry.Endpoint`
)

// howToCreate says how an operator creates a topic that does not exist.
func (p *Plugin) howToCreate(topic string) string {
	if p.routes != nil && slices.ContainsFunc(neededTopics(p.routes), func(n neededTopic) bool { return n.Name == topic }) {
		return creatingCommand
	}
	return creatingOther
}

// missingTopicAttempts is how often a start looks for topics before it reports them as missing. A
// broker may learn of a new topic later than the broker that created it.
const missingTopicAttempts = 3

// routesService is the service of a process that may run routes. Where topics are not created, its
// start ends with ErrTopicMissing when a route or a plugin needs a topic that does not exist: it could
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

// checkTopics returns ErrTopicMissing, with the topics and who uses them, when topics are not
// created.
func (p *Plugin) checkTopics(ctx context.Context) error {
	live, err := p.connected()
	if err != nil {
		return err
	}
	needed := neededTopics(p.routes)
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
