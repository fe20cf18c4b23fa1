//go:build wireinject

package wire

import (
	"github.com/google/wire"

	"github.com/millrace-io/millrace/pipeline"
)

// Plugins builds the plugins of the service, offline, with default settings, downstream first.
func Plugins() []pipeline.Plugin {
	wire.Build(Transports, Capabilities, Handlers, list)
	return nil
}
