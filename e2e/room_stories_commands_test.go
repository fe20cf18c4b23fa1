package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/app"
)

// run runs a command of the waiting room with the settings of a process, and returns what it
// printed.
func (s *roomStory) run(code int, args ...string) string {
	s.t.Helper()
	cmd := exec.Command(binary(s.t), append([]string{"room", "--config", s.processes[0].config}, args...)...)
	cmd.Env = append(os.Environ(), s.env...)
	out, _ := cmd.CombinedOutput() // the code says whether it failed
	require.Equal(s.t, code, cmd.ProcessState.ExitCode(), "%q: %s", args, out)
	return string(out)
}

// result runs a command and decodes its output.
func result[T any](s *roomStory, args ...string) (decoded T) {
	s.t.Helper()
	out := s.run(app.ExitOK, append(args, "--json")...)
	require.NoError(s.t, json.Unmarshal([]byte(out), &decoded), out)
	return decoded
}

func (s *roomStory) prints(args []string, texts ...string) {
	s.t.Helper()
	out := s.run(app.ExitOK, args...)
	for _, text := range texts {
		require.Regexp(s.t, text, out, "%q", args)
	}
}

// An operator opens a room, watches it, and ends it with commands. Each command prints a text or
// JSON. Each change is in the audit, with operator and reason.
func TestOperatorsControlARoomWithCommands(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		event, why := s.event, []string{"--who", "eve", "--why", "ticket 7"}
		with := func(args ...string) []string { return append(args, why...) }
		for _, verb := range []string{"status", "find", "hold"} {
			args := []string{verb, event}
			switch verb {
			case "find":
				args = append(args, "ann")
			case "hold":
				args = with(args...)
			}
			require.Contains(t, s.run(app.ExitBad, args...), verb+" of event "+event+": the event has no room")
		}

		s.prints(with("open", event, "--capacity", "2000", "--concurrency", "0"), `^Event `+event+`: opened\. The room is open\.\n$`)
		ann, ben := s.enter("ann", 0), s.enter("ben", 1)
		ben.stands(1, 2)
		s.prints([]string{"status", event}, `state +open\n`, `mode +fifo\n`, `waiting +2\n`, `capacity +2,000\n`, `admitted at most +0\n`, `promotions per minute +no limit\n`)
		s.prints([]string{"status"}, `(?m)^EVENT +STATE +WAITING +READY +ADMITTED +FREE +SOLD +CAPACITY$`, `(?m)^`+event+` +open +2 +0 +0 +0 +0 +2,000$`)
		listed := result[struct{ Rooms []room.Status }](s, "status", event).Rooms
		require.Len(t, listed, 1)
		require.Equal(t, []any{event, "open", int64(2), int64(2000), int64(0), int64(-1), true},
			[]any{listed[0].Event, listed[0].State, listed[0].Waiting, listed[0].Capacity, listed[0].Concurrency, listed[0].PerMinute, listed[0].Configured})

		s.prints(with("hold", event), `promotion stopped\. The room is paused\.`)
		require.Contains(t, s.run(app.ExitBad, with("hold", event)...), "hold of event "+event)
		require.Equal(t, "open", result[room.Status](s, with("resume", event)...).State)
		s.prints(with("message", event, "Doors open at 8."), `message changed`)
		ann.await("message", func(e received) bool { return e.Text == "Doors open at 8." })
		require.Empty(t, result[room.Status](s, with("message", event, "")...).Message)

		s.prints([]string{"find", event, s.user("ben")}, `user +`+s.user("ben")+`\n`, `state +WAITING\n`, `ahead +1\n`, `instance +apart-2\n`)
		found := result[admin.User](s, "find", event, s.user("ben"))
		require.Equal(t, []any{room.Waiting, "IN_ENTRY", ben.all("connected")[0].Index}, []any{found.State, found.Status, found.Index})
		s.prints(with("kick", event, s.user("ben")), `user removed`)
		ben.closed("kicked")
		s.prints([]string{"find", event, s.user("ben")}, `state +no place\n`, `reason +kicked\n`)

		status := result[room.Status](s, with("set", event, "--concurrency", "-1", "--per-minute", "6000", "--capacity", "1")...)
		require.Equal(t, []int64{-1, 6000, 1}, []int64{status.Concurrency, status.PerMinute, status.Capacity})
		ann.promoted()
		s.prints([]string{"find", event, s.user("ann")}, `state +ADMITTED\n`, `lease +\d+-\w+\n`, `until +\d{4}-`)
		cid := s.enter("cid", 0)
		s.prints(with("drain", event), `no new users\. The room is draining\.`)
		refused, answer := s.call(http.MethodGet, "dan", 1, "")
		require.Equal(t, []any{http.StatusConflict, "draining"}, []any{refused, answer.Error})
		s.prints(with("close", event), `closed\. The room is closed\.`)
		cid.closed("room_closed")
		require.Equal(t, room.Admitted, s.find("ann").State, "leases go on")

		records := result[admin.Records](s, "audit", event).Records
		var verbs []string
		for _, r := range records {
			verbs = append(verbs, r.Verb)
			require.Equal(t, []string{"eve", "ticket 7"}, []string{r.By, r.Why})
			require.Positive(t, r.At)
		}
		require.Equal(t, []string{"open", "hold", "resume", "message", "message", "kick", "set", "drain", "close"}, verbs)
		require.Contains(t, records[5].Detail, s.user("ben"))
		s.prints([]string{"audit", event}, `(?m)^ID +TIME +BY +CHANGE +DETAIL +REASON$`, `(?m)^\d+-\d+ +\S+ +eve +open +.*capacity=2000.* +ticket 7$`)
		page := result[admin.Records](s, "audit", event, "--after", records[2].ID, "--limit", "2").Records
		require.Equal(t, records[3:5], page)
	}, roomApart)
}

// A mistake on the command line is exit code 2, with what is expected, and changes nothing. An
// unavailable server is exit code 3.
func TestMistakesInCommandsOfAWaitingRoomChangeNothing(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.change("open", `,"capacity":1`)
		before := s.status()
		why := []string{"--why", "x"}
		for text, args := range map[string][]string{
			"--why REASON":                      {"open", s.event},
			"accepts 1 arg":                     append([]string{"open"}, why...),
			"event: must be 1 to 128":           append([]string{"open", "a}b"}, why...),
			"capacity: must be >= 0":            append([]string{"set", s.event, "--capacity", "-1"}, why...),
			"invalid argument":                  append([]string{"set", s.event, "--capacity", "many"}, why...),
			"mode: must be":                     append([]string{"set", s.event, "--mode", "vip"}, why...),
			"--opens-at must be a time such":    append([]string{"set", s.event, "--opens-at", "tomorrow"}, why...),
			"nothing to set":                    append([]string{"set", s.event}, why...),
			"message: must have at most 500":    append([]string{"message", s.event, strings.Repeat("x", 501)}, why...),
			"accepts 2 arg":                     append([]string{"kick", s.event}, why...),
			"USER is required":                  append([]string{"kick", s.event, ""}, why...),
			"why: must have 1 to 500":           {"hold", s.event, "--why", strings.Repeat("x", 501)},
			"after: must be the id of a record": {"audit", s.event, "--after", "yesterday"},
			"limit: must be from 1 to 1000":     {"audit", s.event, "--limit", "1001"},
			"unknown flag":                      {"status", "--why", "x"},
		} {
			require.Contains(t, s.run(app.ExitUsage, args...), text, "%q", args)
		}
		after := s.status()
		before.LastTick, after.LastTick = 0, 0
		require.Equal(t, before, after)
		require.Len(t, result[admin.Records](s, "audit", s.event).Records, 1)

		away := unusedAddress(t)
		s.env = []string{"MILLRACE__PLUGINS__REDIS__ADDRS=" + away, "MILLRACE__START_TIMEOUT=5s"}
		require.Contains(t, s.run(app.ExitUnavailable, "status", s.event), away)
	}, roomApart)
}

// A schedule opens and closes a room. Its changes are in the audit, as those of operators are.
func TestAScheduleOpensAndClosesARoom(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		opens := time.Now().Add(time.Hour)
		out := s.run(app.ExitOK, "open", s.event, "--capacity", "1", "--opens-at", opens.Format(time.RFC3339Nano), "--why", "ticket 7", "--who", "eve")
		require.Contains(t, out, "The room is scheduled.")
		ann, ben := s.enter("ann", 0), s.enter("ben", 1)
		ben.await("position", func(e received) bool { return e.RoomState == "scheduled" && *e.Ahead == 1 })
		s.change("set", fmt.Sprintf(`,"opensAt":%d`, time.Now().UnixMilli()))
		ann.promoted()
		s.change("set", fmt.Sprintf(`,"closesAt":%d`, time.Now().Add(10*time.Second).UnixMilli()))
		ben.closed("room_closed")
		var records admin.Records
		require.Equal(t, http.StatusOK, s.operate("audit", "", &records))
		var changes [][]string
		for _, r := range records.Records {
			require.Positive(t, r.At)
			changes = append(changes, []string{r.By, r.Verb, r.Why})
		}
		require.Equal(t, [][]string{{"eve", "open", "ticket 7"}, {"ann (api) for eve", "set", "test"}, {"schedule", "open", "opens_at has passed"}, {"ann (api) for eve", "set", "test"}, {"schedule", "close", "closes_at has passed"}}, changes)
	}, roomApart)
}

// The operations server of each process takes changes with the token of an operator alone. Mistakes have a
// status and a word, and change nothing.
func TestTheOperationsAPIOfARoomRefusesMistakes(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		send := func(ops, path, authorization, body string) string {
			t.Helper()
			var answer said
			status, _ := s.send(http.MethodPost, ops+"/api/v1/rooms/"+path, body, http.Header{"Authorization": {authorization}}, &answer)
			return fmt.Sprint(status, " ", answer.Error)
		}
		const by = `{"by":"eve","why":"test"}`
		for _, ops := range s.operations {
			for _, wrong := range []string{"", "Bearer", "Bearer x", "Basic " + roomOperator, "Bearer " + roomShop} {
				require.Equal(t, "401 no_operator", send(ops, s.event+"/open", wrong, by))
			}
			for request, expected := range map[[2]string]string{
				{s.event + "/hold", by}:                             "404 unknown",
				{s.event + "/destroy", by}:                          "404 unknown_verb",
				{s.event + "/open", "{"}:                            "400 bad_body",
				{s.event + "/open", `{"by":"eve"}`}:                 "400 bad_request",
				{s.event + "/open", `{"by":"eve","why":"x","a":1}`}: "400 bad_body",
				{"a%7Db/open", by}:                                  "400 bad_request",
				{s.event + "/audit", `{"after":"yesterday"}`}:       "400 bad_request",
				{s.event + "/find", `{"user":""}`}:                  "400 bad_request",
			} {
				require.Equal(t, expected, send(ops, request[0], "Bearer "+roomOperator, request[1]), request)
			}
		}
		s.change("open", "")
		require.Equal(t, "409 conflict", send(s.operations[0], s.event+"/resume", "Bearer "+roomOperator, by))
		var records admin.Records
		require.Equal(t, http.StatusOK, s.operate("audit", "", &records))
		require.Len(t, records.Records, 1)
	}, roomApart)
}
