package app

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/millrace-io/millrace/pipeline/operate"
)

const watchInterval = 2 * time.Second

// watch shows what read returns every watchInterval until ctx ends, and clears the screen of a terminal before. An error
// that comes with an answer is shown below it, because a server that is away may come back. One without ends it.
func watch(ctx context.Context, out io.Writer, terminal bool, read func() (operate.Answer, error)) error {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		answer, err := read()
		switch {
		case ctx.Err() != nil:
			return nil
		case answer.Value == nil:
			return err
		}
		if terminal {
			fmt.Fprint(out, "\x1b[H\x1b[2J") // cursor to the top, clear the screen
		}
		if err != nil {
			answer.Notes = append(answer.Notes, err.Error())
		}
		if err := writeAnswer(out, answer); err != nil {
			return err
		}
		select {
		case <-tick.C:
			fmt.Fprintln(out)
		case <-ctx.Done():
			return nil
		}
	}
}
