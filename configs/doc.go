// Package configs holds the settings a person edits: the strict loader and, in the folder profiles, the profiles of the binary
// millrace. A binary of your own brings its own profiles and prefix of environment variables.
//
// Settings come in layers, each over the one before:
//
//  1. the code's defaults, which the target structs already hold;
//  2. a profile (of millrace: embedded, local, dev, staging, production), which says only what differs;
//  3. the file given with --config, which may name its profile itself (`profile: staging`);
//  4. environment variables: MILLRACE__PLUGINS__REDIS__ADDRS=a:6379,b:6379 is plugins.redis.addrs;
//  5. overrides of the program: addresses of the embedded environment, flags of a command.
//
// Sections are merged key by key; anything else replaces what was there; an empty value (`addrs:`)
// changes nothing. Every value remembers where it was written, so that each mistake is reported with
// file and line, all of them at once.
package configs
