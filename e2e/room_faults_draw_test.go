package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
)

// killedInDraw kills a dispatcher while it draws the places. The other one completes the draw.
func (r *roomRun) killedInDraw() { r.inDraw((*faultyProcess).isKilled) }

// frozenInDraw freezes a dispatcher while it draws the places. It goes on when the other one has
// completed the draw.
func (r *roomRun) frozenInDraw() {
	p := r.inDraw((*faultyProcess).isFrozen)
	require.NoError(r.t, p.cmd.Process.Signal(syscall.SIGCONT))
}

// inDraw ends the pre-queue. It waits until the first dispatcher is at its failpoint, and until the
// other one has completed the draw. It verifies the audit file.
func (r *roomRun) inDraw(at func(*faultyProcess) error) *faultyProcess {
	r.t.Helper()
	r.await("the crowd waits", func() error {
		if s := r.status(); s.State != room.PreQueue || s.Waiting < int64(r.c.users)*9/10 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	commitment := r.field("commitment")
	require.Len(r.t, commitment, 64)
	require.NoError(r.t, r.dispatchers[1].cmd.Process.Signal(syscall.SIGSTOP))
	r.operator("open")
	p := r.reached(func(p *faultyProcess) error {
		if err := at(p); err != nil {
			return err
		}
		require.Equal(r.t, room.Drawing, r.field("state"))
		require.Equal(r.t, strings.HasPrefix(r.c.arm, "ordered"), r.field("drawn") == "0", "places that are drawn")
		return nil
	})
	r.await("the draw is complete", func() error {
		if state := r.status().State; state != "open" {
			return fmt.Errorf("state %s", state)
		}
		return nil
	})
	r.audit(commitment)
	return p
}

// field returns a field of the room.
func (r *roomRun) field(name string) string {
	return r.redis.HGet(r.t.Context(), "ROOM:{"+roomEvent+"}", name).Val()
}

// audit verifies the audit file of the draw. The checker compares its places with those that the
// users receive.
func (r *roomRun) audit(commitment string) {
	r.t.Helper()
	name := filepath.Join(r.t.TempDir(), "audit.txt")
	_, err := r.command("room", "shuffle", roomEvent, "--file", name)
	require.NoError(r.t, err)
	out, err := exec.Command(binary(r.t), "room", "verify", name, "--commitment", commitment).CombinedOutput()
	require.NoError(r.t, err, "%s", out)
	file, err := os.Open(name)
	require.NoError(r.t, err)
	defer func() { _ = file.Close() }()
	a, err := shuffle.Read(file)
	require.NoError(r.t, err)
	byHash, places := make(map[shuffle.Hash]int, a.Users), map[string]int{}
	for i, hash := range a.Order {
		byHash[hash] = i + 1
	}
	for i := 1; len(places) < a.Users && i < 10*a.Users; i++ {
		user := fmt.Sprint("user-", i)
		if place := byHash[shuffle.User(roomEvent, user)]; place > 0 {
			places[user] = place
		}
	}
	require.Len(r.t, places, a.Users, "the file has users that have not entered")
	r.check.Drawn(places)
}
