package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// rights are those of the grants of a store that the user lacks.
type rights struct {
	user    string
	super   bool
	all     int                 // rights that the grants name
	writes  bool                // the user has one besides SELECT
	missing map[string][]string // tables by right
}

// sqlRights leaves out tables that do not exist, because they are migrations that have not run.
const sqlRights = `SELECT c.relnamespace::regnamespace::text || '.' || t, p, has_table_privilege(c.oid, p)
	FROM unnest(string_to_array($1, ', ')) AS t JOIN pg_class c ON c.oid = to_regclass(t), unnest(string_to_array($2, ', ')) AS p ORDER BY t COLLATE "C"`

// readRights looks for each right of the grants. A statement finds a table as the query does, by the search_path.
func (s Schema) readRights(ctx context.Context, db *sql.DB) (operate.Check, error) {
	r := rights{missing: map[string][]string{}}
	err := db.QueryRowContext(ctx, "SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user", unprepared).Scan(&r.user, &r.super)
	for _, g := range s.Grants {
		if err != nil {
			break
		}
		err = portable.EachRow(ctx, db.QueryContext, func(row *sql.Rows) error {
			var table, right string
			var has bool
			err := row.Scan(&table, &right, &has)
			r.all++
			if !has {
				r.missing[right] = append(r.missing[right], table)
			}
			r.writes = r.writes || has && right != "SELECT"
			return err
		}, sqlRights, unprepared, g.On, g.Rights)
	}
	return r.check(), err
}

func (r rights) check() operate.Check {
	var lacks, grants []string
	for _, right := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
		if tables := strings.Join(r.missing[right], ", "); tables != "" {
			lacks = append(lacks, right+" on "+tables)
			grants = append(grants, fmt.Sprintf("GRANT %s ON %s TO %s;", right, tables, pgx.Identifier{r.user}.Sanitize()))
		}
	}
	grant := "run as the owner of the tables: " + strings.Join(grants, " ")
	switch {
	case len(grants) > 0 && !r.writes && r.missing["SELECT"] == nil:
		return operate.Check{
			Level: operate.Warn, Text: fmt.Sprintf("user %s may only read the tables, so a service can't work with this DSN", r.user),
			Remedy: "use the DSN of the service's role, or " + grant, Runbook: rolesPage,
		}
	case len(grants) > 0:
		return operate.Check{Level: operate.Fail, Text: fmt.Sprintf("user %s lacks %s", r.user, strings.Join(lacks, "; ")), Remedy: grant, Runbook: rolesPage}
	}
	if r.all == 0 {
		return operate.Check{Level: operate.OK, Text: "not examined, because there are no tables yet"}
	}
	text := fmt.Sprintf("user %s has the %d rights on tables that a service needs", r.user, r.all)
	if r.super {
		return operate.Check{Level: operate.Warn, Text: text + ", as a superuser", Remedy: "give the service a role of its own", Runbook: rolesPage}
	}
	return operate.Check{Level: operate.OK, Text: text}
}
