// Package wire builds the service: provider sets, and one injector. It is the only importer of
// google/wire. After a change run `make wire`; `make drift` checks that the generated file is up to
// date.
//
// A handler plugin has a provider in Handlers, and a parameter and an element in newService. The
// command `new handler` adds them.
package wire
