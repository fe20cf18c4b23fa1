package room

import (
	"regexp"
	"unicode"
	"unicode/utf8"
)

// roomsKey is the set of events that have a room.
const roomsKey = "ROOMS"

var eventPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// ValidEvent reports whether a text may be the id of an event. It is a segment of paths.
func ValidEvent(event string) bool {
	return event != "." && event != ".." && eventPattern.MatchString(event)
}

// ValidUser reports whether a text may be the id of a user: 1 to 128 printable characters.
func ValidUser(user string) bool {
	if !utf8.ValidString(user) || user == "" || utf8.RuneCountInString(user) > 128 {
		return false
	}
	for _, c := range user {
		if !unicode.IsPrint(c) {
			return false
		}
	}
	return true
}

// EntryStream returns the stream of an event's promotions.
func EntryStream(event string) string { return "ENTRY:{" + event + "}" }

// keys returns the keys of an event in the order of common.lua.
func keys(event string) []string {
	names := []string{
		"WAITING", "WAITING_QUEUE_INDEX_RECORD", "WAITING_USER_IDS", "WAITING_QUEUE_IDX", "ENTRY_QUEUE_SLOTS", "ENTRY",
		"ENTRY_LEASES", "ENTRY_RECORD", "ENTRY_ENDED", "WAITING_SEEN", "WAITING_LEFT", "WAITING_ASIDE", "ROOM", "ROOM_TABLE",
		"ROOM_AUDIT", "ENTRY_GONE", "WAITING_FORGET", "WAITING_FROZEN", "ROOM_SHUFFLE", "ENTRY_BUYERS", "ROOM_SOLD",
	}
	list := make([]string, 0, len(names)+2)
	for _, name := range names {
		list = append(list, name+":{"+event+"}")
	}
	return append(list, EntryStream(event)+":meta", "ENTRY_TOKEN:{"+event+"}:")
}

// TableKey returns the key of an event's rank table.
func TableKey(event string) string { return "ROOM_TABLE:{" + event + "}" }

func roomKey(event string) string { return "ROOM:{" + event + "}" }

// soldKey has the seats that were sold in a room that nobody has closed, while there is no room.
func soldKey(event string) string { return "ROOM_SOLD:{" + event + "}" }

// frozenKey has the users of a pre-queue while it is drawn.
func frozenKey(event string) string { return "WAITING_FROZEN:{" + event + "}" }

// orderKey has the drawn order: hashes of users, by the number of places before them.
func orderKey(event string) string { return "ROOM_SHUFFLE:{" + event + "}" }

func asideKey(event string) string { return "WAITING_ASIDE:{" + event + "}" }
