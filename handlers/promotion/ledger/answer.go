package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

// Replay asks for a payout that was given up to be tried again.
type Replay struct {
	Letter     string // id of the dead letter
	Generation int    // counts the replays of the letter, from 1
	Who, Why   string // for the audit; both required
	DryRun     bool   // answer what would become of it, and change nothing; needs neither who nor why
}

func (r *Replay) check(k Key) error {
	r.Letter, r.Who, r.Why = clean(r.Letter), clean(r.Who), clean(r.Why)
	if r.Letter == "" || r.Generation < 1 || !r.DryRun && (r.Who == "" || r.Why == "") {
		return invalid("payout %s: a replay needs a letter, a generation from 1, who and why", k)
	}
	return nil
}

// Replayed is what became of a replay.
type Replayed struct {
	Outcome ReplayOutcome
	Reason  string // why it was refused
	State   State  // of the payout now
}

// ReplayOutcome is what became of a replay.
type ReplayOutcome string

// The outcomes of a replay.
const (
	ReplayDone    ReplayOutcome = "replayed" // the payout is due again; the feeder enqueues it
	ReplayAlready ReplayOutcome = "already"  // this letter and generation was replayed before; nothing changed
	ReplayRefused ReplayOutcome = "refused"  // nothing changed; Reason says why
)

// Replay moves a FAILED payout back to PENDING and an UNKNOWN one back to AMBIGUOUS, with all its attempts before
// it, the same stored request and the same idempotency key. What may have been charged is sent again only within the
// key's time and is otherwise asked about, as after any other call; so is what a late answer says was charged, whoever denied it. A letter and generation has one effect,
// however often it is replayed; a replay that was refused may be tried again. An unknown payout answers ErrNotFound.
func (l *Ledger) Replay(ctx context.Context, k Key, r Replay) (Replayed, error) {
	if err := k.validate(); err != nil {
		return Replayed{}, err
	}
	if err := r.check(k); err != nil {
		return Replayed{}, err
	}
	var done Replayed
	w := want{promotions: []Promotion{k.Of()}, keys: []Key{k}, lock: true}
	err := l.transact(ctx, w, func(ctx context.Context, u unit, s *snapshot, c *changes) error {
		row := s.rows[k]
		if row == nil {
			return notFound(k)
		}
		before := row.State
		done = Replayed{State: before}
		n, err := u.querier().exec(ctx, sqlReplay, r.Letter, r.Generation, row.ID, s.now)
		if err != nil {
			return err
		}
		if n == 0 {
			return l.replayedBefore(ctx, u, row, r, &done)
		}
		charged, err := paidBefore(ctx, u.querier(), row.ID)
		if err != nil {
			return err
		}
		if charged != "" && !row.MaybeCharged {
			// Somebody has denied it, or it was answered after that. How long the key is in use isn't known any more: the longest.
			row.MaybeCharged, row.FirstSentAt = true, row.AcceptedAt
		}
		next, eff, d := l.policy.apply(row.Row, event{kind: evReplay, now: s.now, promotion: s.promotions[k.Of()]})
		if d.refused != "" {
			done.Outcome, done.Reason = ReplayRefused, d.refused
			return errUndo
		}
		row.Row = next
		done.Outcome, done.State = ReplayDone, next.State
		if r.DryRun {
			return errUndo
		}
		book := l.newBook(s, c)
		book.add(row, eff, nil, "")
		if err := writeAudit(ctx, u.querier(), s.now, k, Audit{Who: r.Who, Why: r.Why, Action: "replay",
			Detail: fmt.Sprintf("letter %s, generation %d: %s to %s", r.Letter, r.Generation, before, next.State)}); err != nil {
			return err
		}
		return book.close(ctx, u)
	})
	if err != nil && !errors.Is(err, errUndo) {
		return Replayed{}, l.answer("replay", err)
	}
	return done, nil
}

// answer leaves alone what the ledger itself says about a payout or promotion.
func (l *Ledger) answer(what string, err error) error {
	if err == nil || errors.Is(err, ErrNotFound) || errors.Is(err, ErrRefused) {
		return err
	}
	return l.wrap(what, err)
}

// errUndo rolls a transaction back that has nothing to change.
var errUndo = errors.New("nothing to change")

const (
	sqlReplay   = `INSERT INTO ledger_replays (letter, generation, payout_id, at) VALUES ($1, $2, $3, $4) ON CONFLICT (letter, generation) DO NOTHING`
	sqlReplayed = `SELECT payout_id FROM ledger_replays WHERE letter = $1 AND generation = $2`
	sqlPaid     = `SELECT answer FROM attempts WHERE payout_id = $1 AND outcome = 'paid' ORDER BY epoch DESC LIMIT 1`
)

// paidBefore returns the answer of a call that said the payout was charged, or "". A payout that is not SUCCESS has one when the
// answer came after somebody else had taken over.
func paidBefore(ctx context.Context, q querier, payoutID int64) (answer string, err error) {
	err = q.query(ctx, func(r scanner) error { return r.Scan(&answer) }, sqlPaid, payoutID)
	return answer, err
}

// replayedBefore answers for a letter and generation that is taken.
func (l *Ledger) replayedBefore(ctx context.Context, u unit, row *stored, r Replay, done *Replayed) error {
	var of int64
	if err := u.querier().query(ctx, func(s scanner) error { return s.Scan(&of) }, sqlReplayed, r.Letter, r.Generation); err != nil {
		return err
	}
	done.Outcome = ReplayAlready
	if of != row.ID {
		done.Outcome, done.Reason = ReplayRefused, "the letter belongs to another payout"
	}
	return errUndo
}

// Resolution is a person's word about a payout that may have been charged.
type Resolution struct {
	Paid           bool
	TransactionKey string // required when paid
	Who, Why       string // for the audit: the evidence; both required
	// Force books it although the ledger has a reason against it: unpaid, and a late answer says that it was charged; or it is
	// AMBIGUOUS, and the Money API is asked again.
	Force bool
	// Handler is the caller's name, for the dead letter of an AMBIGUOUS payout that was not paid. May be empty.
	Handler string
}

func (r *Resolution) check(k Key) error {
	r.TransactionKey, r.Who, r.Why = clean(r.TransactionKey), clean(r.Who), clean(r.Why)
	switch {
	case r.Who == "" || r.Why == "":
		return invalid("payout %s: a resolution needs who and why", k)
	case r.Paid && r.TransactionKey == "":
		return invalid("payout %s: paid needs the transaction key", k)
	case !r.Paid && r.TransactionKey != "":
		return invalid("payout %s: unpaid has no transaction key", k)
	}
	return nil
}

// Resolve books what a person has found out about an UNKNOWN payout: SUCCESS with its transaction key, or FAILED, which
// nothing but a person's word can say of a payout that may have been charged. With Force it does so for an AMBIGUOUS payout of
// which only lookups are left (LookedUp), too; FAILED then has a dead letter of class ClassResolved, which may be replayed.
// A payout in any other state is left alone, with an error that wraps ErrRefused, and so is one that a late answer says was
// charged, unless Force denies it; one that is not known answers ErrNotFound.
func (l *Ledger) Resolve(ctx context.Context, k Key, r Resolution) error {
	if err := k.validate(); err != nil {
		return err
	}
	if err := r.check(k); err != nil {
		return err
	}
	w := want{promotions: []Promotion{k.Of()}, keys: []Key{k}, lock: true}
	err := l.transact(ctx, w, func(ctx context.Context, u unit, s *snapshot, c *changes) error {
		row := s.rows[k]
		if row == nil {
			return notFound(k)
		}
		if charged, err := paidBefore(ctx, u.querier(), row.ID); err != nil {
			return err
		} else if charged != "" && !r.Paid && !r.Force {
			return fmt.Errorf("ledger: payout %s: %w: an answer that came late says it was charged, %s", k, ErrRefused, charged)
		}
		next, eff, d := l.policy.apply(row.Row, event{kind: evResolve, now: s.now, promotion: s.promotions[k.Of()], resolve: r})
		if d.refused != "" {
			return fmt.Errorf("ledger: payout %s: %w: %s", k, ErrRefused, d.refused)
		}
		detail := string(row.State) + " to FAILED: not charged"
		if r.Paid {
			detail = string(row.State) + " to SUCCESS, transaction key " + r.TransactionKey
		}
		row.Row = next
		book := l.newBook(s, c)
		book.add(row, eff, nil, r.Handler)
		if err := writeAudit(ctx, u.querier(), s.now, k, Audit{Who: r.Who, Why: r.Why, Action: "resolve", Detail: detail}); err != nil {
			return err
		}
		return book.close(ctx, u)
	})
	return l.answer("resolve", err)
}

// Rebuild forgets every hint in the promotion's stream, as when the stream is lost: the feeder enqueues the payouts
// again. It returns how many. It is safe at any time: at worst the stream holds entries twice, and the ledger lets the
// second one do nothing. An unknown promotion answers ErrNotFound.
func (l *Ledger) Rebuild(ctx context.Context, p Promotion, who, why string) (int64, error) {
	if err := p.validate(); err != nil {
		return 0, err
	}
	if who, why = clean(who), clean(why); who == "" || why == "" {
		return 0, invalid("promotion %s: a rebuild needs who and why", p)
	}
	var n int64
	err := l.update(ctx, "rebuild", nil, func(q querier, now time.Time) error {
		known := false
		if err := q.query(ctx, func(r scanner) error { var s string; known = true; return r.Scan(&s) },
			`SELECT state FROM promotions WHERE type = $1 AND promotion_id = $2`, string(p.Type), p.ID); err != nil {
			return err
		}
		if !known {
			return fmt.Errorf("promotion %s: %w", p, ErrNotFound)
		}
		// The stream's row is locked first, as by every feeder.
		if _, err := sameIncarnation(ctx, q, p, ""); err != nil {
			return err
		}
		var err error
		if n, err = unhint(ctx, q, p, now); err != nil {
			return err
		}
		return writeAudit(ctx, q, now, Key{Type: p.Type, Promotion: p.ID}, Audit{Who: who, Why: why, Action: "rebuild",
			Detail: fmt.Sprintf("%d payouts are enqueued again", n)})
	})
	return n, err
}

// Audit is what a person did.
type Audit struct {
	At     time.Time `json:"at"`
	Who    string    `json:"who"`
	Why    string    `json:"why"`
	Action string    `json:"action"` // replay, announce, resolve, rebuild, pause, resume or cancel
	Detail string    `json:"detail"`
	// DBUser is the role of the database session (session_user), which the server itself writes. Empty: SQLite, or a
	// line of an older version.
	DBUser string `json:"database_user,omitempty"`
}

func writeAudit(ctx context.Context, q querier, now time.Time, k Key, a Audit) error {
	_, err := q.exec(ctx, `INSERT INTO ledger_audit (at, who, why, action, type, promotion_id, target_id, detail)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`, now, a.Who, a.Why, a.Action, string(k.Type), k.Promotion, k.Target, a.Detail)
	return err
}

// Audit returns what persons did to a promotion, oldest first; what they did to its payouts is with Explain.
func (l *Ledger) Audit(ctx context.Context, p Promotion) (lines []Audit, err error) {
	lines = []Audit{}
	err = l.read(ctx, "audit", func(q querier, _ time.Time) error {
		found, err := readAudit(ctx, q, Key{Type: p.Type, Promotion: p.ID})
		lines = append(lines, found...)
		return err
	})
	return lines, err
}

const sqlAudit = `SELECT at, who, why, action, detail, db_user FROM ledger_audit
WHERE type = $1 AND promotion_id = $2 AND target_id = $3 ORDER BY type, promotion_id, target_id, id`

func readAudit(ctx context.Context, q querier, k Key) (lines []Audit, err error) {
	err = q.query(ctx, func(r scanner) error {
		var a Audit
		var at sqldb.Time
		err := r.Scan(&at, &a.Who, &a.Why, &a.Action, &a.Detail, &a.DBUser)
		a.At = at.Time
		lines = append(lines, a)
		return err
	}, sqlAudit, string(k.Type), k.Promotion, k.Target)
	return lines, err
}
