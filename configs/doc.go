// Package configs loads settings strictly. The folder profiles has the profiles of the binary
// millrace. A binary of your own has its own profiles and prefix of environment variables.
//
// Settings have layers, and a later layer overrides an earlier one:
//
//  1. the code's defaults, which the target structs already hold;
//  2. a profile (of millrace: embedded, local, dev, staging, production);
//  3. the file given with --config, which may name its profile itself (`profile: staging`);
//  4. environment variables: MILLRACE__PLUGINS__REDIS__ADDRS=a:6379,b:6379 is plugins.redis.addrs;
//  5. overrides of the program: addresses of the embedded environment, flags of a command.
//
// Sections are merged key by key. Any other value is replaced. An empty value (`addrs:`) changes
// nothing. All mistakes are reported at once, with file and line.
package configs
