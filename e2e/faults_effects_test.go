package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// The kinds of effects, one for each Repeat. All read one topic, so each record asks for an effect of each kind.
const (
	kindByKey    = "invoice-by-key"
	kindByLookup = "invoice-by-lookup"
	kindNever    = "invoice-never"
	kindAlways   = "invoice-always"

	invoicesTopic = "invoices"
	settledTopic  = "invoices-settled"
)

func invoiceKinds() []string { return []string{kindByKey, kindByLookup, kindNever, kindAlways} }

// The promises of kinds of effects under faults, for each Repeat: the built binary, three instances, real servers. The
// book of the far side says what has happened.
func TestFaultsOfEffects(t *testing.T) {
	tier.RestOf(t) // its cases are selected one by one
	runFaults(t, onInvoices)
}

// invoices is the business of the kinds of effects. Promotions are off.
type invoices struct {
	*billing
	dsn string
}

// onInvoices is the business of a deployment with kinds of effects.
func onInvoices(w *deployment) business {
	if w == nil {
		return invoices{}
	}
	return invoices{newBilling(w.t), w.settings["plugins.promotion.ledger.dsn"].(string)}
}

func (invoices) matrix() []faults.Fault { return faults.OfEffects() }
func (invoices) place() string          { return faults.OfKinds }
func (invoices) peace() []string        { return []string{faults.Effect} }

func (invoices) groups() (all []string) {
	for _, kind := range invoiceKinds() {
		all = append(all, "millrace-"+kind)
	}
	return all
}

func (v invoices) settings() map[string]any {
	all := map[string]any{"plugins.promotion.enabled": false, "plugins.once.ledger.dsn": v.dsn}
	for kind, of := range map[string]map[string]any{
		kindByKey:    {"repeat": "by_key", "request.idempotency_header": "Idempotency-Key", "effects.key_ttl": "1h", "effects.via": "streams", "effects.grace": "5s"},
		kindByLookup: {"repeat": "by_lookup", "request.idempotency_header": "Idempotency-Key", "effects.under_way": "1500ms", "lookup.path": "/" + kindByLookup + "/invoices/{key}", "lookup.not_found": []string{"not_found"}},
		kindNever:    {"repeat": "never", "effects.via": "streams", "effects.grace": "5s"},
		kindAlways:   {"repeat": "always"},
	} {
		at := "plugins.effects.kinds." + kind + "."
		for name, value := range of {
			all[at+name] = value
		}
		for name, value := range map[string]any{
			"key": "invoice.number", "group": "invoice.customer", "request.path": "/" + kind + "/invoices", "request.body": "invoice",
			"answers.receipt": "id", "api.url": "http://" + v.addr, "api.breaker.open_delay": "500ms", "api.max_retry_after": "2s",
			"effects.topic": invoicesTopic, "effects.results": settledTopic, "effects.call_timeout": faultCall.String(), "effects.lease_margin": (faultLease - faultCall).String(),
			"effects.retry.first": faultRetry.String(), "effects.retry.max": "2s", "effects.max_retries": attemptsMax - 1,
			"effects.poll_interval": "200ms", "effects.concurrency": effectCalls,
		} {
			all[at+name] = value
		}
	}
	return all
}

// effectCalls is how many calls of a kind an instance makes at once.
const effectCalls = 8

func (v invoices) begin(t *caseRun) work { return &effects{caseRun: t, billing: v.billing} }

// effects is the work of a case with the kinds of effects.
type effects struct {
	*caseRun
	billing *billing
}

func (*effects) source() string              { return invoicesTopic }
func (e *effects) readers() []string         { return e.business.groups() }
func (*effects) written() []string           { return []string{invoicesTopic + "-dead", settledTopic} }
func (*effects) told() []string              { return []string{settledTopic} }
func (*effects) dead() []string              { return []string{invoicesTopic + "-dead"} }
func (*effects) each() int                   { return len(invoiceKinds()) }
func (*effects) announcement() []*kgo.Record { return nil }
func (*effects) watch(context.Context)       {}
func (*effects) table() string               { return "once_effects" }
func (e *effects) customers() []string {
	return []string{fmt.Sprint(e.id.ID, " Acmé"), fmt.Sprint(e.id.ID, " Acmé:1")}
}
func (e *effects) invoice(kind string, target int64) invoice {
	customers := e.customers()
	n := strconv.FormatInt(target/4, 10)
	switch target % 4 {
	case 0: // has the text of the next one, unless a colon is escaped
		return invoice{kind, customers[0], "1:" + n}
	case 1:
		return invoice{kind, customers[1], n}
	case 2: // has the text of the first one, unless a percent sign is escaped
		return invoice{kind, customers[0], "1%3A" + n}
	}
	return invoice{kind, customers[0], "№ {" + n + "}/?#&"}
}

// request is what each attempt sends for an offer.
func (e *effects) request(o offer) string {
	i := e.invoice("", o.target)
	body, _ := json.Marshal(map[string]any{"customer": i.customer, "number": i.number, "cents": o.amount})
	return string(body)
}

func (e *effects) payload(o offer) string { return `{"invoice":` + e.request(o) + `}` }

func (e *effects) bad(what string, i int) (*kgo.Record, string) {
	r := &kgo.Record{Topic: e.source(), Key: fmt.Appendf(nil, "%d", i)}
	switch what {
	case "conflict":
		o := e.offer[int64(i+1)]
		o.amount++
		return e.record(o), "effect_conflict"
	case "large":
		r.Value = fmt.Appendf(nil, `{"invoice":{"customer":"a","number":"1","text":"%070000d"}}`, i)
		return r, "invalid"
	}
	r.Value = []byte(`{"invoice":`)
	return r, "undecodable"
}

func (e *effects) steer(verb string) (commands [][]string) {
	for _, kind := range invoiceKinds() {
		for _, customer := range e.customers() {
			commands = append(commands, []string{"once", verb, "--kind", kind, "--group", customer})
		}
	}
	return commands
}

// effectRow is an effect as the ledger has it.
type effectRow struct {
	state                   rules.State
	receipt                 string
	attempts, interruptions int
	slow                    int // calls that used their whole time, or their lease, on an instance that nobody had asked to end
}

const (
	effectState = `CASE e.state WHEN 2 THEN 'SENDING' WHEN 5 THEN 'SUCCESS' WHEN 6 THEN 'FAILED' WHEN 7 THEN 'UNKNOWN' WHEN 8 THEN 'CANCELLED' ELSE 'PENDING' END`

	sqlEffectRows = `SELECT k.name, e.grp, e.id, ` + effectState + `, coalesce(e.receipt, ''), coalesce(e.attempts, 1), coalesce(e.interruptions, 0),
	(SELECT count(*) FROM once_attempts a WHERE a.kind = e.kind AND a.grp = e.grp AND a.id = e.id
		AND (a.ended_at - a.started_at >= $2 AND (a.outcome = 'unclear' OR a.call = 'lookup' AND a.outcome = 'unrecognized')
			OR a.ended_at - a.started_at >= $5 AND a.class = $6)
		AND NOT EXISTS (SELECT FROM unnest($3::text[], $4::timestamptz[]) AS s (instance, asked) WHERE s.instance = a.instance AND s.asked <= a.ended_at))
FROM once_effects e JOIN once_kinds k ON k.number = e.kind WHERE e.grp = ANY($1)`

	sqlEffectCounts = `SELECT ` + effectState + `, count(*) FROM once_effects e WHERE e.grp = ANY($1) GROUP BY 1`
)

// effectRows returns the ledger's; a server that has just come back may refuse once or twice.
func (e *effects) effectRows(ctx context.Context) (all map[invoice]effectRow, err error) {
	var stopped []string
	var asked []time.Time
	for _, m := range e.all {
		if !m.asked.IsZero() {
			stopped, asked = append(stopped, m.name), append(asked, m.asked)
		}
	}
	return all, until(ctx, 20*time.Second, "the ledger's rows", func() error {
		all = map[invoice]effectRow{}
		return e.sql(ctx, func(conn *pgx.Conn) error {
			rows, err := conn.Query(ctx, sqlEffectRows, e.customers(), faultCall, stopped, asked, faultLease, rules.ClassLeaseExpired)
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var i invoice
				var r effectRow
				if err := rows.Scan(&i.kind, &i.customer, &i.number, (*string)(&r.state), &r.receipt, &r.attempts, &r.interruptions, &r.slow); err != nil {
					return err
				}
				all[i] = r
			}
			return rows.Err()
		})
	})
}

// counts are those of the rows; none while the database does not answer.
func (e *effects) counts(ctx context.Context) (c ledger.Counts) {
	_ = e.sql(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, sqlEffectCounts, e.customers())
		if err != nil {
			return err
		}
		var state string
		var n int64
		_, err = pgx.ForEachRow(rows, []any{&state, &n}, func() error {
			c.Accepted += n
			switch rules.State(state) {
			case rules.Success:
				c.Paid = n
			case rules.Failed:
				c.Failed = n
			case rules.Unknown:
				c.Unknown = n
			case rules.Cancelled:
				c.Cancelled = n
			case rules.Sending:
				c.InFlight, c.Pending = n, c.Pending+n
			default:
				c.InRetry, c.Pending = n, c.Pending+n
			}
			return nil
		})
		return err
	})
	return c
}

func (e *effects) recorded(ctx context.Context, reader string) (map[int64]bool, error) {
	rows, err := e.effectRows(ctx)
	targets := map[int64]bool{}
	for target := range e.offer {
		for _, kind := range invoiceKinds() {
			if _, ok := rows[e.invoice(kind, target)]; ok && "millrace-"+kind == reader {
				targets[target] = true
			}
		}
	}
	return targets, err
}

// Four targets have four names that differ only by what is escaped.
func TestTheNamesOfInvoices(t *testing.T) {
	t.Parallel()
	e := &effects{caseRun: &caseRun{}}
	names, texts := map[invoice]bool{}, map[string]int{}
	for target := range int64(100) {
		i := e.invoice(kindNever, target)
		require.False(t, names[i], "%+v", i)
		names[i] = true
		texts[i.customer+":"+i.number]++
	}
	doubled := 0
	for _, n := range texts {
		if n > 1 {
			doubled++
		}
	}
	require.Equal(t, 25, doubled, "without an escape a quarter of the names is that of another one")
}
