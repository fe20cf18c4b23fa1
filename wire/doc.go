// Package wire builds the service: provider sets, and one injector. It is the only importer of
// google/wire. After a change run `make wire`; `make drift` checks that the generated file is up to
// date.
//
// A plugin is a constructor in one of the sets and a field of Service. The command `new handler` adds
// both for a handler.
package wire
