package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
	"github.com/millrace-io/millrace/pipeline/app"
)

// drawn opens a shuffled pre-queue, lets users enter it, and returns when they are drawn.
func (s *roomStory) drawn(users ...string) {
	s.t.Helper()
	s.change("open", `,"mode":"shuffle","capacity":100`)
	for _, user := range users {
		status, _ := s.call(http.MethodGet, user, 0, "")
		require.Equal(s.t, http.StatusOK, status)
	}
	s.change("open", "")
	s.equals("the draw is complete", "open", func() any { return s.status().State })
}

// auditOf returns the answer to the verb shuffle of the API.
func (s *roomStory) auditOf(authorization string) (status int, contentType, body string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.operations[0]+"/api/v1/rooms/"+s.event+"/shuffle", http.NoBody)
	require.NoError(s.t, err)
	r.Header.Set("Authorization", authorization)
	resp, err := direct.RoundTrip(r)
	require.NoError(s.t, err)
	defer func() { _ = resp.Body.Close() }()
	var text bytes.Buffer
	_, err = text.ReadFrom(resp.Body)
	require.NoError(s.t, err)
	return resp.StatusCode, resp.Header.Get("Content-Type"), text.String()
}

// verify runs `millrace room verify` without settings and servers.
func (s *roomStory) verify(code int, args ...string) string {
	s.t.Helper()
	cmd := exec.Command(binary(s.t), append([]string{"room", "verify"}, args...)...)
	out, _ := cmd.CombinedOutput() // the code says whether it failed
	require.Equal(s.t, code, cmd.ProcessState.ExitCode(), "%q: %s", args, out)
	return string(out)
}

// An operator writes the audit of a draw with a command, or gets it from the API. Any user verifies
// it, and sees the own place.
func TestAShuffleIsPublishedAndVerifiedWithCommands(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		const operator = "Bearer " + roomOperator
		file := filepath.Join(t.TempDir(), "audit.txt")
		refused := func(want int, text string) {
			t.Helper()
			status, _, body := s.auditOf(operator)
			require.Equal(t, want, status)
			require.Contains(t, body, text)
			require.Contains(t, s.run(app.ExitBad, "shuffle", s.event, "--file", file), "shuffle of event "+s.event+": "+text)
			require.NoFileExists(t, file)
		}
		refused(http.StatusNotFound, "the event has no room")
		s.change("open", "")
		refused(http.StatusConflict, "not possible in this state: the room has no shuffle")
		s.change("open", `,"mode":"shuffle"`)
		refused(http.StatusConflict, "not possible in this state: the draw is not complete")
		require.NotContains(t, s.run(app.ExitOK, "status", s.event, "--json"), "secret")
		s.drawn("ann", "ben", "cid")
		commitment := s.status().Commitment

		require.Contains(t, s.run(app.ExitOK, "shuffle", s.event, "--file", file), file+" has the order of 3 users of event "+s.event)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		status, contentType, body := s.auditOf(operator)
		require.Equal(t, []any{http.StatusOK, "text/plain; charset=utf-8", string(text)}, []any{status, contentType, body})
		status, _, _ = s.auditOf("Bearer x")
		require.Equal(t, http.StatusUnauthorized, status)
		again := filepath.Join(t.TempDir(), "again.txt")
		a := result[shuffle.Audit](s, "shuffle", s.event, "--file", again)
		require.Equal(t, []any{s.event, commitment, 3}, []any{a.Event, a.Commitment, a.Users})
		require.FileExists(t, again)

		require.Contains(t, s.run(app.ExitUsage, "shuffle", s.event, "--file", file), "--file: open "+file+": file exists")
		require.Contains(t, s.run(app.ExitUsage, "shuffle", s.event), "--file is missing")
		require.Contains(t, s.run(app.ExitUsage, "shuffle", "--file", file), "accepts 1 arg")
		require.Contains(t, s.run(app.ExitUsage, "shuffle", s.event, "--file", filepath.Join(file, "x")), "not a directory")
		s.env = []string{"MILLRACE__PLUGINS__REDIS__ADDRS=" + unusedAddress(t), "MILLRACE__START_TIMEOUT=5s"}
		lost := filepath.Join(t.TempDir(), "lost.txt")
		require.Contains(t, s.run(app.ExitUnavailable, "shuffle", s.event, "--file", lost), "redis")
		require.NoFileExists(t, lost)

		require.Regexp(t, `event +`+s.event+`\nusers +3\ncommitment +`+commitment+`\n\nThe order follows from the secret`, s.verify(app.ExitOK, file))
		var places []int
		for _, user := range []string{"ann", "ben", "cid"} {
			var found struct {
				shuffle.Audit
				Place int
			}
			require.NoError(t, json.Unmarshal([]byte(s.verify(app.ExitOK, file, "--commitment", commitment, "--user", s.user(user), "--json")), &found))
			require.Equal(t, commitment, found.Commitment)
			places = append(places, found.Place)
			require.Regexp(t, fmt.Sprint(`place of the user +`, found.Place, `\n`), s.verify(app.ExitOK, file, "--user", s.user(user)))
		}
		slices.Sort(places)
		require.Equal(t, []int{1, 2, 3}, places)
	}, roomApart)
}

// A file that was changed, or that is of another draw, is refused with the reason.
func TestAForgedShuffleIsRefused(t *testing.T) {
	t.Parallel()
	stories(t, func(t *testing.T, s *roomStory) {
		s.drawn("ann", "ben", "cid")
		commitment := s.status().Commitment
		_, _, text := s.auditOf("Bearer " + roomOperator)
		a, err := shuffle.Read(strings.NewReader(text))
		require.NoError(t, err)
		file := func(text string) string {
			t.Helper()
			name := filepath.Join(t.TempDir(), "audit.txt")
			require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
			return name
		}
		written := func(a shuffle.Audit) string {
			t.Helper()
			var text bytes.Buffer
			require.NoError(t, a.Write(&text))
			return file(text.String())
		}
		forged := a
		forged.Order = slices.Clone(a.Order)
		slices.Reverse(forged.Order)
		added := a
		added.Order = append([]shuffle.Hash{shuffle.User(s.event, "eve")}, a.Order...)
		secret := a
		secret.Secret = shuffle.NewSecret()
		// Another draw of the same users, which is right in itself.
		other := a
		other.Secret = shuffle.NewSecret()
		other.Commitment = shuffle.Commitment(other.Secret).String()
		other.Order = nil
		digest := shuffle.Digest(a.Order)
		for _, i := range shuffle.New(other.Secret, digest).Order(a.Order) {
			other.Order = append(other.Order, a.Order[i])
		}
		event := a
		event.Event = "7"
		for text, args := range map[string][]string{
			"places 1 and 2 are in the wrong order":      {written(forged)},
			"users were added or removed":                {written(added)},
			"it is another secret":                       {written(secret)},
			"not the published " + commitment:            {written(other), "--commitment", commitment},
			"the user " + s.user("ann") + " is not in":   {written(event), "--user", s.user("ann")},
			"the user nobody is not in the file":         {written(a), "--user", "nobody"},
			"line 1 must be a JSON object":               {file("no audit\n")},
			"line 1 is missing":                          {file("")},
			"line 2 must be a hash of 64 hexadecimal di": {file("{\"users\":1}\nx\n")},
		} {
			out := s.verify(app.ExitBad, args...)
			require.Contains(t, out, args[0]+": ")
			require.Contains(t, out, text)
			require.NotContains(t, out, "The order follows")
		}
		require.Contains(t, s.verify(app.ExitUsage, filepath.Join(t.TempDir(), "absent")), "no such file")
		require.Contains(t, s.verify(app.ExitUsage), "accepts 1 arg")
		s.verify(app.ExitOK, written(a), "--commitment", commitment)
	}, roomApart)
}
