package app

import (
	"context"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// By is the author of a change and the reason, for an audit.
type By struct{ Who, Why string }

// Flags adds --who and --why to a command.
func (b *By) Flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.Who, "who", Person(), "the `name` that is recorded")
	cmd.Flags().StringVar(&b.Why, "why", "", "the `reason` that is recorded")
}

// Check cuts white space and reports the missing flags, all at once.
func (b *By) Check() error {
	var missing []string
	if b.Who = strings.TrimSpace(b.Who); b.Who == "" {
		missing = append(missing, "--who NAME")
	}
	if b.Why = strings.TrimSpace(b.Why); b.Why == "" {
		missing = append(missing, "--why REASON")
	}
	switch {
	case len(missing) > 0:
		return Usage("%s required, for the audit", strings.Join(missing, " and "))
	case operate.AuthorOf(b.Who).Face != operate.FaceCommand:
		return Usage("--who must not be %s, nor end as the console and its API end the name of a person, because the audit tells them apart by it, got %q", operate.Schedule, b.Who)
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

// SendAuditor is implemented by a plugin that reads topics with records that ask for side effects, such as payments.
type SendAuditor interface {
	// SendAudit returns nil for any other topic. All plugins are registered.
	SendAudit(r *pipeline.Registry, topic string) *SendAudit
}

// sendAudit returns how `send` to the topic is recorded. It is nil for most topics.
func (h *Host) sendAudit(r *pipeline.Registry, topic string) *SendAudit {
	for _, p := range h.opts.Plugins {
		if a, ok := p.(SendAuditor); ok {
			if audit := a.SendAudit(r, topic); audit != nil {
				return audit
			}
		}
	}
	return nil
}

// Person returns the user of this process as name@host, for records of operators' actions, or who called sudo
// when that user is root. It is empty when the user is nobody's own, such as that of a container.
func Person() string {
	name, id := os.Getenv("USER"), ""
	if u, err := user.Current(); err == nil {
		name, id = u.Username, u.Uid
	}
	accounts, _ := os.ReadFile("/etc/passwd")
	name = personOf(name, id, os.Getenv("SUDO_USER"), string(accounts))
	if host, err := os.Hostname(); err == nil && name != "" {
		name += "@" + host
	}
	return name
}

// personOf returns the person behind the user, or nothing. accounts is the text of /etc/passwd, in which the user
// of a service or of an image has no login shell, because everybody who may enter the container is that user.
func personOf(name, id, sudoer, accounts string) string {
	if id == "0" && sudoer != "" {
		return sudoer
	}
	for line := range strings.Lines(accounts) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if shell := fields[len(fields)-1]; fields[0] == name && (strings.HasSuffix(shell, "/nologin") || strings.HasSuffix(shell, "/false")) {
			return ""
		}
	}
	return name
}
