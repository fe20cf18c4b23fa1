package waitingroom

import (
	"fmt"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// audits offers the audits of the rooms to the console.
type audits struct{ rooms *room.Store }

// AuditLogs implements operate.Auditor.
func (a audits) AuditLogs() []operate.AuditLog {
	return []operate.AuditLog{{
		Name: "rooms", Title: "Waiting rooms",
		Note: fmt.Sprintf("Each room keeps about 10,000 changes. Those of up to %d rooms that exist are here; "+
			"with the event as the subject also those of any other room.", room.AuditRooms),
		Recent: a.rooms.RecentAudit,
	}}
}
