package reconcile

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Effect is an effect of the ledger.
type Effect struct {
	ID          string
	State       rules.State
	PerhapsDone bool // of one that is not settled
	Sent        bool // a request may have reached the far side
	AcceptedAt  time.Time
	SettledAt   time.Time
	Receipt     string
	Sum         int64
	HasSum      bool
}

// Input is one group of effects and the far side's book of them.
type Input struct {
	Kind, Group string
	Book        string // path of the file: see ReadBook
	// AsOf is when the book was written, by the clock of the ledger, and not later than the first read of Effects.
	AsOf time.Time
	// Lag is how far the clocks may differ, and how long the far side may take to write its book. What was done
	// less than Lag before AsOf may be missing in the book.
	Lag time.Duration
	// Effects calls its function for each effect of the group, in any order. sums says whether sums are compared.
	Effects func(sums bool, each func(Effect) error) error
	// Kept returns the totals that the ledger keeps beside the effects. They are compared with the effects if they are the
	// same before and after those are read. May be nil.
	Kept func() (Kept, error)
	// Key returns the idempotency key of an id. Nil: this program does not know it, so a book by key is refused.
	Key func(id string) string
	// Of returns the kind and the group of which an idempotency key certainly is. Nil: keys don't tell.
	Of func(key string) (kind, group string, ok bool)
	// Sums says that effects have a sum.
	Sums bool
	// Each is called for each effect in the ledger or in the book, in the order of a hash. May be nil. An error ends the
	// comparison.
	Each func(Pair, []Bucket) error

	inMemory int // Sorter.Max, for tests
}

// ErrNoKeys means that the book names effects by idempotency keys, and nobody here can derive those.
var ErrNoKeys = errors.New("the book has idempotency keys")

// Pair is an effect in the ledger and in the book. One that does not have it is nil.
type Pair struct {
	Name   string // the id, or the text in the book
	Effect *Effect
	Later  bool // it was accepted, done or ended UNKNOWN after the book's time
	Entry  *Entry
}

// Entry is everything that the book has about one effect.
type Entry struct {
	Line    int // the first one
	Times   int64
	Receipt string // of the first line with one
	Sum     int64  // of the first line with one
	HasSum  bool

	otherReceipt bool // no line has the receipt of the effect, and one has another
	otherSum     bool // a line has another sum than the effect
}

// Compare reads the book and then the effects, and compares them. Memory does not depend on their number.
func Compare(ctx context.Context, in Input) (Report, error) {
	c := comparison{Input: in, report: Report{Kind: in.Kind, Group: in.Group, Book: in.Book, AsOf: in.AsOf.UTC(), Lag: in.Lag.Seconds(), Tally: NewTally[string](Buckets())}}
	err := c.run(ctx)
	return c.report, err
}

type comparison struct {
	Input
	report Report
}

func (c *comparison) run(ctx context.Context) (err error) {
	effects := Sorter[sortedEffect]{Compare: func(a, b sortedEffect) int { return a.key.compare(b.key) }, Append: appendEffect, Read: readEffect, Max: c.inMemory}
	lines := Sorter[sortedLine]{Compare: func(a, b sortedLine) int { return cmp.Or(a.key.compare(b.key), cmp.Compare(a.Number, b.Number)) }, Append: appendLine, Read: readLine, Max: c.inMemory}
	defer func() { err = errors.Join(err, effects.Close(), lines.Close()) }()
	if err := c.readBook(ctx, &lines); err != nil {
		return err
	}
	if c.report.Kept, err = Steady(c.Kept, func() error { return c.readEffects(ctx, &effects) }); err != nil {
		return err
	}
	allEffects, err := effects.Sorted()
	if err != nil {
		return err
	}
	allLines, err := lines.Sorted()
	if err != nil {
		return err
	}
	if err := c.join(ctx, allEffects, allLines); err != nil {
		return err
	}
	c.report.conclude()
	return nil
}

func (c *comparison) readBook(ctx context.Context, into *Sorter[sortedLine]) error {
	r := &c.report
	columns, err := ReadBook(c.Book, func(columns Columns, l Line) error {
		r.Lines++
		if columns.ByKey && c.Key == nil {
			return ErrNoKeys
		}
		group, other := l.Group, false
		if columns.ByKey && c.Of != nil {
			if kind, of, ok := c.Of(l.Text); ok {
				group, other = cmp.Or(group, of), kind != c.Kind
			}
		}
		if other || group != "" && group != c.Group {
			r.OtherGroups++
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		return into.Add(sortedLine{hashOf(l.Text), l})
	})
	r.Columns = columns
	return err
}

// Steady reads, and returns the kept totals if they were the same before and after that, and otherwise nil. kept may be
// nil.
func Steady(kept func() (Kept, error), read func() error) (*Kept, error) {
	if kept == nil {
		return nil, read()
	}
	before, err := kept()
	if err != nil {
		return nil, err
	}
	if err := read(); err != nil {
		return nil, err
	}
	after, err := kept()
	if err != nil || after != before {
		return nil, err
	}
	return &after, nil
}

func (c *comparison) readEffects(ctx context.Context, into *Sorter[sortedEffect]) error {
	before := c.AsOf.Add(-c.Lag)
	return c.Effects(c.Sums && c.report.Columns.has(columnSum), func(e Effect) error {
		text := e.ID
		if c.report.Columns.ByKey {
			text = c.Key(e.ID)
		}
		// One that is UNKNOWN may have been done at any time before it ended.
		later := e.AcceptedAt.After(before) || (e.State == rules.Success || e.State == rules.Unknown) && e.SettledAt.After(before)
		if err := ctx.Err(); err != nil {
			return err
		}
		return into.Add(sortedEffect{hashOf(text), later, e})
	})
}

// join goes through both in the order of their hashes. It holds one effect at a time.
func (c *comparison) join(ctx context.Context, effects *Sorted[sortedEffect], lines *Sorted[sortedLine]) error {
	for {
		effect, isEffect := effects.Peek()
		line, isLine := lines.Peek()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !isEffect && !isLine:
			return nil
		case isEffect && (!isLine || effect.key.compare(line.key) <= 0):
			p := Pair{Name: effect.ID, Effect: &effect.Effect, Later: effect.later}
			if err := c.one(effects, lines, effect.key, p); err != nil {
				return err
			}
		default:
			if err := c.one(effects, lines, line.key, Pair{Name: line.Text}); err != nil {
				return err
			}
		}
	}
}

func (c *comparison) one(effects *Sorted[sortedEffect], lines *Sorted[sortedLine], key hash, p Pair) error {
	same := 0
	if err := effects.Take(func(e sortedEffect) bool { return e.key == key }, func(sortedEffect) { same++ }); err != nil {
		return err
	}
	if same > 1 {
		return fmt.Errorf("the idempotency keys of two effects are the same, one of which is %s: Kind.Idempotency must be different for each key", p.Name)
	}
	hasReceipt := false
	if err := lines.Take(func(l sortedLine) bool { return l.key == key }, func(l sortedLine) {
		if p.Entry == nil {
			p.Entry = &Entry{Line: l.Number}
		}
		e := p.Entry
		e.Times += l.Times
		e.Receipt = cmp.Or(e.Receipt, l.Receipt)
		if l.HasSum && !e.HasSum {
			e.Sum, e.HasSum = l.Sum, true
		}
		c.report.InBookSum += l.Sum * l.Times
		if p.Effect != nil {
			hasReceipt = hasReceipt || l.Receipt == p.Effect.Receipt
			e.otherReceipt = e.otherReceipt || l.Receipt != "" && p.Effect.Receipt != "" && l.Receipt != p.Effect.Receipt
			e.otherSum = e.otherSum || l.HasSum && p.Effect.HasSum && l.Sum != p.Effect.Sum
		}
	}); err != nil {
		return err
	}
	if p.Entry != nil && hasReceipt {
		p.Entry.otherReceipt = false
	}
	return c.count(p)
}

func (c *comparison) count(p Pair) error {
	r := &c.report
	r.Effects++
	r.count(p)
	in := p.buckets()
	for _, b := range in {
		r.Count(b, p.Name, b != Matched)
	}
	if c.Each == nil {
		return nil
	}
	return c.Each(p, in)
}

// hash is the order of the comparison: 16 bytes of SHA-256 of the text by which effects are compared.
type hash [16]byte

func hashOf(text string) hash {
	sum := sha256.Sum256([]byte(text))
	return hash(sum[:16])
}

func (h hash) compare(other hash) int { return bytes.Compare(h[:], other[:]) }

type sortedEffect struct {
	key   hash
	later bool
	Effect
}

// Flags of an encoded effect or line.
const (
	flagLater = 1 << iota
	flagPerhapsDone
	flagSum
	flagSent
)

func appendEffect(to []byte, e sortedEffect) []byte {
	to = append(append(to, e.key[:]...), flagsOf(e.later, e.PerhapsDone, e.HasSum, e.Sent))
	to = appendText(appendText(appendText(to, e.ID), string(e.State)), e.Receipt)
	for _, n := range []int64{e.Sum, microsOf(e.AcceptedAt), microsOf(e.SettledAt)} {
		to = binary.AppendVarint(to, n)
	}
	return to
}

func readEffect(from *bufio.Reader) (e sortedEffect, err error) {
	if _, err = io.ReadFull(from, e.key[:]); err != nil {
		return e, err
	}
	flags, err := from.ReadByte()
	e.later, e.PerhapsDone, e.HasSum, e.Sent = flags&flagLater != 0, flags&flagPerhapsDone != 0, flags&flagSum != 0, flags&flagSent != 0
	for _, to := range []*string{&e.ID, (*string)(&e.State), &e.Receipt} {
		if err == nil {
			*to, err = readText(from)
		}
	}
	var accepted, settled int64
	for _, to := range []*int64{&e.Sum, &accepted, &settled} {
		if err == nil {
			*to, err = binary.ReadVarint(from)
		}
	}
	e.AcceptedAt, e.SettledAt = timeOf(accepted), timeOf(settled)
	return e, whole(err)
}

// microsOf is a time as the ledger stores it, and 0 is the zero time.
func microsOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func timeOf(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}

type sortedLine struct {
	key hash
	Line
}

func appendLine(to []byte, l sortedLine) []byte {
	to = append(append(to, l.key[:]...), flagsOf(false, false, l.HasSum, false))
	to = appendText(appendText(to, l.Text), l.Receipt)
	return binary.AppendVarint(binary.AppendVarint(binary.AppendVarint(to, int64(l.Number)), l.Times), l.Sum)
}

func readLine(from *bufio.Reader) (l sortedLine, err error) {
	if _, err = io.ReadFull(from, l.key[:]); err != nil {
		return l, err
	}
	flags, err := from.ReadByte()
	l.HasSum = flags&flagSum != 0
	for _, to := range []*string{&l.Text, &l.Receipt} {
		if err == nil {
			*to, err = readText(from)
		}
	}
	var number int64
	for _, to := range []*int64{&number, &l.Times, &l.Sum} {
		if err == nil {
			*to, err = binary.ReadVarint(from)
		}
	}
	l.Number = int(number)
	return l, whole(err)
}

func flagsOf(all ...bool) (flags byte) {
	for i, is := range all {
		if is {
			flags |= 1 << i
		}
	}
	return flags
}

// whole turns the end of a file within an item into an error that is not taken for the end of the run.
func whole(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
