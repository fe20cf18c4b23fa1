// Package wire puts the service together: one provider set a room, one injector for the service. It
// is the only importer of google/wire. After a change run `make wire`; `make drift` checks that the
// generated file is up to date.
//
// A new handler plugin is two lines here: its constructor in Handlers, and its place in newService.
package wire
