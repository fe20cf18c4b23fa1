package waitingroom

import (
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
)

// kindKeys is the kind of an endpoint that stands for all keys with a beginning.
const kindKeys = "redis-keys"

// keyPatterns are those of the keys of rooms, as a user of the server needs rights for them. The README of room
// has each key.
func keyPatterns() []string { return []string{"WAITING*", "ENTRY*", "ROOM*", "DISPATCH*"} }

// endpoints adds what the roles write and follow outside of the routes, for the command topology.
func (p *Plugin) endpoints(r *pipeline.Registry) {
	stream := func(name string) pipeline.Endpoint { return pipeline.Endpoint{Kind: poll.Kind, Name: name} }
	table := pipeline.Endpoint{Kind: "redis-string", Name: room.TableKey("<event>")}
	for _, pattern := range keyPatterns() {
		r.Endpoint(pipeline.UseWrites, pipeline.Endpoint{Kind: kindKeys, Name: pattern})
	}
	r.Endpoint(pipeline.UseWrites, stream(room.AuditStream("<event>"))) // by operators, with either role
	if p.config.has(roleDispatcher) {
		r.Endpoint(pipeline.UseWrites, stream(room.EntryStream("<event>")))
		r.Endpoint(pipeline.UseWrites, stream(room.DispatchStream("<instance>")))
		r.Endpoint(pipeline.UseWrites, table)
	}
	if p.config.has(roleBroker) {
		r.Endpoint(pipeline.UseFollows, table)
	}
}
