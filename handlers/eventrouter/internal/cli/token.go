package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline/app"
)

// Token is the output of token --json.
type Token struct {
	Token   string    `json:"token"`
	Jobs    []string  `json:"jobs"`
	Expires time.Time `json:"expires"`
}

func (c commands) token() *cobra.Command {
	var subject string
	var life time.Duration
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "token DOMAIN/JOB_ID…",
		Short: "Sign a token with which a browser watches jobs",
		Long: `Sign a token with which a browser watches jobs.

It is signed with the first of plugins.token.keys. Present it as "Authorization: Bearer",
or as the query parameter token.`,
		Example: "  millrace jobs token scan/42 --config settings.yaml\n  millrace jobs token scan/42 scan/43 --for 10m --config settings.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, arg := range args {
				if _, err := jobArg(arg); err != nil {
					return err
				}
			}
			if life < 0 {
				return app.Usage("--for must be > 0, got %s", life)
			}
			return c.h.Services(cmd.Context(), cmd, app.ServicesOptions{Plugins: []string{"token"}}, func(context.Context, *app.Running) error {
				t := Token{Jobs: args, Expires: time.Now().Add(life).UTC().Truncate(time.Second)}
				if life == 0 {
					t.Expires = time.Now().Add(c.Settings().MaxWatch).UTC().Truncate(time.Second)
				}
				var err error
				if t.Token, err = c.Sign(args, subject, t.Expires); err != nil {
					return err
				}
				return c.h.Show(cmd, t, func(w io.Writer) error {
					_, err := fmt.Fprintln(w, t.Token)
					return err
				})
			})
		},
	})
	cmd.Flags().StringVar(&subject, "subject", "", "the `user` that watches")
	cmd.Flags().DurationVar(&life, "for", 0, "life of the token (default max_watch)")
	return cmd
}
