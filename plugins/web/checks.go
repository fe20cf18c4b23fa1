package web

import (
	"context"
	"fmt"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// Examinations implements operate.Examined: whether the file descriptors are enough for the streams. Without
// handlers the server does not listen, and needs none.
func (p *Plugin) Examinations() []operate.Examination {
	if len(p.mounts) == 0 {
		return nil
	}
	return []operate.Examination{{Place: p.Name(), Open: func(context.Context) ([]operate.Examine, func(), error) {
		return []operate.Examine{{What: "descriptors", Read: func(context.Context) ([]operate.Check, error) {
			return []operate.Check{p.descriptorsCheck()}, nil
		}}}, nil, nil
	}}}
}

func (p *Plugin) descriptorsCheck() operate.Check {
	const remedy = "raise the limit (ulimit -n, LimitNOFILE of systemd)"
	descriptors, limit := p.clients()
	if setting, value, over := p.config.over(limit); over {
		return operate.Check{
			Level: operate.Fail, Text: fmt.Sprintf("plugins.web.%s is %d, and the limit of file descriptors (%d) leaves %d for clients", setting, value, descriptors, limit),
			Remedy: "lower the setting, or " + remedy,
		}
	}
	if !p.servesStreams() {
		return operate.Check{Level: operate.OK, Text: "they are enough, because no plugin serves streams"}
	}
	streams := p.config.streams(limit)
	text := fmt.Sprintf("they are enough for %d streams", streams)
	if p.config.MaxStreams == 0 && streams < defaultStreams {
		return operate.Check{Level: operate.Warn, Text: fmt.Sprintf("%s, which is fewer than the usual %d", text, defaultStreams), Remedy: remedy}
	}
	return operate.Check{Level: operate.OK, Text: text}
}

func (p *Plugin) servesStreams() bool {
	for _, m := range p.mounts {
		if m.stream {
			return true
		}
	}
	return false
}

var _ operate.Examined = (*Plugin)(nil)
