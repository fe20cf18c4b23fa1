package app_test

import (
	"context"
	"errors"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// drainable is a toy that keeps what ends its process.
type drainable struct {
	*toy
	drain func(why error)
}

func (d *drainable) Register(r *pipeline.Registry) error {
	d.drain = r.Env().Drain
	return d.toy.Register(r)
}

func TestAProcessEndsFromWithin(t *testing.T) {
	t.Parallel()
	d := &drainable{toy: newToy()}
	done := start(t.Context(), options(d, "run"))
	d.feed.SendPayloads(`"world"`)
	await(t, d.handled)
	d.drain(errors.New("ordered by ann"))
	r := await(t, done)
	require.Equal(t, app.ExitOK, r.code, r.stderr)
	require.Regexp(t, `"msg":"draining","reason":"ordered by ann"|draining .*reason="ordered by ann"`, r.stderr)

	d = &drainable{toy: newToy()}
	d.commands = command(func(h *app.Host, cmd *cobra.Command) error {
		return h.Run(cmd.Context(), cmd, app.RunOptions{Ready: func(context.Context, *app.Running) error { return nil }})
	})
	require.Zero(t, await(t, start(t.Context(), options(d, "do"))).code)
	require.Nil(t, d.drain, "what a command runs ends when its work is done")
}
