package e2e

import (
	"context"
	"syscall"

	"github.com/millrace-io/millrace/internal/failpoint"
)

// frozenInTransaction stops the victim inside a transaction of the ledger, so that it keeps its
// locks. Meanwhile an operator pauses the promotion. The pause must end, and another promotion must
// be paid, before the victim wakes.
func (t *caseRun) frozenInTransaction(ctx context.Context) error {
	m := t.victim()
	if err := t.freeze(ctx, m, string(failpoint.InTransaction)+":1:stop"); err != nil {
		return err
	}
	paused := make(chan error, 1)
	go func() { paused <- t.steer(ctx, "pause", "--future") }()
	other := t.faultDeployment.run(t.c)
	err := other.publish(ctx, t.c.Targets/2)
	if err == nil {
		err = other.settledShare(ctx, 100)
	}
	if pause := <-paused; err == nil {
		err = pause
	}
	if err != nil {
		return err
	}
	m.signal(syscall.SIGCONT)
	return t.steer(ctx, "resume")
}
