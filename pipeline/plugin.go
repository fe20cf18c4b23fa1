package pipeline

import "github.com/millrace-io/millrace/pipeline/migration"

// Plugin is one unit of extension: a transport, a capability or a business handler. A plugin is
// built offline (no connection is opened before Service.Start) and registers what it brings.
//
// The life of a plugin, in order:
//
//  1. it is constructed with default settings, by Wire or by hand;
//  2. when it implements Configurable, its settings section is decoded over the defaults and
//     validated;
//  3. Register is called once, in the order of the list of plugins, downstream plugins first;
//  4. its services are started in that order, then its routes are opened;
//  5. at the end the Drainers are drained in the reverse order, then all routes at once. Then
//     services are stopped in the reverse order.
type Plugin interface {
	// Name is the plugin's unique, lower-case name and the key of its settings (plugins.<name>).
	Name() string
	// Register adds routes, services, HTTP handlers, health checks and collectors. It must not
	// block and must not open connections; `millrace topology` calls it on a laptop without a
	// network.
	Register(*Registry) error
}

// Configurable is implemented by a plugin that has settings.
type Configurable interface {
	// Settings returns a pointer to the plugin's configuration struct, filled with its defaults.
	// Fields carry `yaml:"snake_case"` tags. When the struct has a method Validate() error, it is
	// called after decoding and reports every mistake at once (see setting.Problems). A plugin
	// whose struct has a method EnabledByDefault() bool that returns false is off by default.
	Settings() any
}

// Dependent is implemented by a plugin that does not work without others.
type Dependent interface {
	// Needs returns the names of those plugins. While this plugin is enabled, they must be in the binary
	// and can't be switched off (plugins.<name>.enabled). It is called after the settings were decoded, and
	// may depend on them.
	Needs() []string
}

// Names returns the names of those capabilities that are plugins, for Needs. A handler that got Topics and
// DeadLetters then needs the plugins that the binary has chosen for them, and none for the fakes of a test.
func Names(capabilities ...any) []string {
	var names []string
	for _, c := range capabilities {
		if p, ok := c.(Plugin); ok {
			names = append(names, p.Name())
		}
	}
	return names
}

// Migratable is implemented by a plugin that keeps tables. The command `migrate` brings them up to
// date. The plugin's service that opens a store calls Env.Schemas.Prepare first.
type Migratable interface {
	// Schemas returns the schemas of the stores that are configured, in the order of their
	// migration. It is called after the settings were decoded and validated, and opens no
	// connection.
	Schemas(Env) []migration.Schema
}
