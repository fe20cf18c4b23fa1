//go:build wireinject

package wire

import "github.com/google/wire"

// New builds the service offline, with default settings.
func New() Service {
	wire.Build(Transports, Capabilities, Handlers, wire.Struct(new(Service), "*"))
	return Service{}
}
