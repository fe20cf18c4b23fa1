package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
	"github.com/millrace-io/millrace/pipeline/app"
)

func (c commands) shuffle() *cobra.Command {
	var file string
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "shuffle EVENT --file FILE",
		Short: "Write the audit file of a shuffle",
		Long: `Write the audit file of a shuffle.

The file has the secret, and the hash of each user in the drawn order. Publish it after the
draw. The exit code is 1 before the draw is complete, and after the room was cleared.`,
		Example: "  millrace room shuffle 42 --file shuffle-42.txt --profile broker",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return app.Usage("--file is missing")
			}
			return c.run(cmd, func(ctx context.Context, rooms *room.Store) error {
				a, err := do[shuffle.Audit](ctx, rooms, args[0], admin.Shuffle, admin.Request{})
				if err != nil {
					return err
				}
				if err := create(file, a); err != nil {
					return err
				}
				return c.h.Show(cmd, a, func(out io.Writer) error {
					_, err := fmt.Fprintf(out, "%s has the order of %s of event %s.\n", app.Printable(file), app.Plural(int64(a.Users), "user"), app.Printable(a.Event))
					return err
				})
			})
		},
	})
	cmd.Flags().StringVar(&file, "file", "", "`file` to create")
	return cmd
}

// create writes an audit to a new file.
func create(file string, a shuffle.Audit) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // the audit is public
	if err != nil {
		return app.Usage("--file: %w", err)
	}
	if err := errors.Join(a.Write(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return nil
}

func (c commands) verify() *cobra.Command {
	var commitment, user string
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "verify FILE",
		Short: "Verify a shuffle from its audit file alone",
		Long: `Verify a shuffle from its audit file alone.

No server is needed. The exit code is 1 if the order does not follow from the secret and the
users. It is also 1 if the file has another commitment than --commitment.`,
		Example: "  millrace room verify shuffle-42.txt --commitment 590c910f43b1… --user ann",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return app.Usage("%w", err)
			}
			defer func() { _ = f.Close() }()
			a, err := shuffle.Read(f)
			if err == nil {
				err = a.Verify()
			}
			if err == nil && commitment != "" && commitment != a.Commitment {
				err = fmt.Errorf("the commitment is %s, not the published %s", a.Commitment, commitment)
			}
			found := verified{Audit: a}
			if err == nil && user != "" {
				if found.Place = a.Place(user); found.Place == 0 {
					err = fmt.Errorf("the user %s is not in the file", app.Printable(user))
				}
			}
			if err != nil {
				return app.Bad("%s: %w", app.Printable(args[0]), err)
			}
			return c.h.Show(cmd, found, found.write)
		},
	})
	cmd.Flags().StringVar(&commitment, "commitment", "", "published `hash` of the secret")
	cmd.Flags().StringVar(&user, "user", "", "show the place of this user `id`")
	return cmd
}

// verified is the output of verify.
type verified struct {
	shuffle.Audit
	Place int `json:"place,omitempty"` // of the user, from 1
}

func (v verified) write(out io.Writer) error {
	w := app.Table(out)
	fmt.Fprintf(w, "event\t%s\nusers\t%s\ncommitment\t%s\n", app.Printable(v.Event), app.Thousands(int64(v.Users)), app.Printable(v.Commitment))
	if v.Place > 0 {
		fmt.Fprintf(w, "place of the user\t%s\n", app.Thousands(int64(v.Place)))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, "\nThe order follows from the secret and the users of this file.")
	return err
}
