package app

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
)

// By is the author of a change and the reason, for an audit.
type By struct{ Who, Why string }

// Flags adds --who and --why to a command.
func (b *By) Flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.Who, "who", Person(), "the `name` that is recorded")
	cmd.Flags().StringVar(&b.Why, "why", "", "the `reason` that is recorded")
}

// Check refuses an incomplete author.
func (b *By) Check() error {
	if strings.TrimSpace(b.Who) == "" || strings.TrimSpace(b.Why) == "" {
		return Usage("--who NAME and --why REASON are required")
	}
	return nil
}

// SendAudit records what an operator sends to a topic.
type SendAudit struct {
	// Register adds the services that Record needs.
	Register func(*pipeline.Registry) error
	// Record is called before a record is published. Its error keeps the record from being
	// published.
	Record func(ctx context.Context, payload []byte, by By) error
}

// SendAuditor is implemented by a plugin that reads topics with records that cause payments.
type SendAuditor interface {
	// SendAudit returns nil for any other topic.
	SendAudit(topic string) *SendAudit
}

// SendAudit returns how `send` to the topic is recorded. It is nil for most topics.
func (h *Host) SendAudit(topic string) *SendAudit {
	for _, p := range h.o.Plugins {
		if a, ok := p.(SendAuditor); ok {
			if audit := a.SendAudit(topic); audit != nil {
				return audit
			}
		}
	}
	return nil
}
