package console

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

const (
	maxRunning  = 8         // actions at once, and previews at once
	maxUses     = 1000      // uses that are remembered, so that one which arrives again acts once
	maxAnswers  = 50        // the newest of them that have their answers, because an answer may be large
	formLife    = time.Hour // of the id in a form; its preview is too old afterwards
	previewTime = 20 * time.Second
)

var (
	errFull        = fmt.Errorf("%d actions run already: try again when one has ended", maxRunning)
	errLooking     = fmt.Errorf("%d previews are being made already: try again in a moment", maxRunning)
	errEnding      = errors.New("this instance is being stopped and starts no action any more: use the console of another one")
	errOtherUse    = errors.New("this id belongs to another use: an action, a person or a field differs")
	errInterrupted = errors.New("stopped")
	errOldForm     = errors.New("this form is of an earlier start of the process, is too old, or its fields were changed: look at the preview again")
)

// uses runs actions, and remembers them. A use runs until it ends, is stopped by a person, or the process
// stops, whether or not anybody waits for it. Build it with newUses.
type uses struct {
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup
	key  []byte // of the ids in forms

	mu      sync.Mutex // guards what follows
	log     *slog.Logger
	closed  bool // nothing is begun any more
	running int
	looking int
	byID    map[string]*use
	order   []*use    // as they began
	floor   time.Time // when the last use that is forgotten began
}

// use is one use of an action.
type use struct {
	id     string
	action action
	person person
	face   string // console or API
	input  operate.Input
	why    string
	begun  time.Time
	ended  chan struct{}
	cancel context.CancelFunc

	// Guarded by uses.mu.
	now progress
}

// progress is what is known of a use.
type progress struct {
	Running     bool
	Done, Total int64  // Total 0: the action does not say
	Said        string // the last sentence
	StoppedBy   string
	Answer      operate.Answer
	Forgotten   bool // there was an answer
	Err         error
	At          time.Time // of the end
}

// failed reports whether a use that has ended did not do all of it.
func (p progress) failed() bool { return p.Err != nil || p.Answer.Failed() }

func newUses() *uses {
	u := &uses{byID: map[string]*use{}, key: []byte(rand.Text()), log: slog.New(slog.DiscardHandler)}
	u.life, u.end = context.WithCancel(context.Background())
	return u
}

func (u *uses) logTo(log *slog.Logger) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.log = log
}

// meaning is what has to be equal when a use arrives again.
func (one *use) meaning() string {
	return one.action.Name + "\x00" + one.person.Name + "\x00" + encoded(one.input)
}

// formID returns the id of a use for a form. It is good for these fields in this process.
func (u *uses) formID(one *use) string {
	id := strconv.FormatInt(time.Now().UnixMilli(), 36) + "-" + rand.Text()[:16]
	return id + "-" + u.sign(id, one)
}

func (u *uses) sign(id string, one *use) string {
	mac := hmac.New(sha256.New, u.key)
	mac.Write([]byte(id + "\x00" + one.meaning()))
	return hex.EncodeToString(mac.Sum(nil)[:10])
}

// checkForm reports a form whose id is not good, also one whose use may have been forgotten.
func (u *uses) checkForm(one *use) error {
	i := strings.LastIndexByte(one.id, '-')
	if i < 0 || !hmac.Equal([]byte(one.id[i+1:]), []byte(u.sign(one.id[:i], one))) {
		return errOldForm
	}
	millis, _, _ := strings.Cut(one.id, "-")
	n, err := strconv.ParseInt(millis, 36, 64)
	made := time.UnixMilli(n)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil || time.Since(made) > formLife || !made.After(u.floor) {
		return errOldForm
	}
	return nil
}

// get returns the use with an id.
func (u *uses) get(id string) (*use, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	one, found := u.byID[id]
	return one, found
}

// begin starts a use, or returns the one that has the same id.
func (u *uses) begin(one *use, do func(context.Context, operate.Use) (operate.Answer, error)) (*use, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if earlier, found := u.byID[one.id]; found {
		if earlier.meaning() != one.meaning() {
			return nil, errOtherUse
		}
		return earlier, nil
	}
	switch {
	case u.closed:
		return nil, errEnding
	case u.running == maxRunning:
		return nil, errFull
	}
	u.forget()
	one.begun, one.ended, one.now.Running = time.Now(), make(chan struct{}), true
	ctx, cancel := context.WithCancel(u.life)
	one.cancel = cancel
	u.byID[one.id] = one
	u.order = append(u.order, one)
	u.running++
	u.log.Info("action started", one.attrs()...)
	u.work.Go(func() {
		defer cancel()
		answer, err := answering(ctx, func(ctx context.Context) (operate.Answer, error) { return do(ctx, u.useOf(one)) })
		u.finish(one, answer, err)
	})
	return one, nil
}

// useOf returns what the action gets of the use.
func (u *uses) useOf(one *use) operate.Use {
	of := operate.Use{
		ID: one.id,
		Progress: func(done, total int64) {
			u.mu.Lock()
			defer u.mu.Unlock()
			one.now.Done, one.now.Total = done, total
		},
		Say: func(text string) {
			u.mu.Lock()
			defer u.mu.Unlock()
			one.now.Said = text
		},
	}
	if one.action.Audited {
		of.Who, of.Why = one.person.by(one.face), one.why
	}
	return of
}

func (one *use) attrs() []any {
	return []any{
		slog.String("action", one.action.Name), slog.String("use", one.id), slog.String("who", one.person.by(one.face)), slog.String("why", one.why),
	}
}

func (u *uses) finish(one *use, answer operate.Answer, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil && u.life.Err() != nil {
		err = fmt.Errorf("the process was stopped before the action had ended: %w", err)
	}
	if err != nil && one.now.StoppedBy != "" {
		err = fmt.Errorf("%w by %s: %w", errInterrupted, one.now.StoppedBy, err)
	}
	one.now.Running, one.now.Answer, one.now.Err, one.now.At = false, answer, err, time.Now()
	u.running--
	kept := 0
	for i := len(u.order) - 1; i >= 0; i-- {
		if old := u.order[i]; !old.now.Running {
			if kept++; kept > maxAnswers {
				old.now.Answer, old.now.Forgotten = operate.Answer{Checks: old.now.Answer.Checks}, true
			}
		}
	}
	if one.now.failed() {
		u.log.Warn("action failed", append(one.attrs(), logs.Err(failure(one.now)))...)
	} else {
		u.log.Info("action done", one.attrs()...)
	}
	close(one.ended)
}

// forget makes room for one more use. Those that run are kept. The mutex is held.
func (u *uses) forget() {
	for i, old := range u.order {
		if len(u.order) < maxUses {
			return
		}
		if !old.now.Running {
			delete(u.byID, old.id)
			u.order = append(u.order[:i:i], u.order[i+1:]...)
			u.floor = old.begun
			return
		}
	}
}

// state returns what is known of a use.
func (u *uses) state(one *use) progress {
	u.mu.Lock()
	defer u.mu.Unlock()
	return one.now
}

// wait waits until the use has ended, and no longer than limit.
func (u *uses) wait(ctx context.Context, one *use, limit time.Duration) progress {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-one.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	return u.state(one)
}

// interrupt ends a use that runs, in the way in which Ctrl-C ends a command.
func (u *uses) interrupt(one *use, who string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if one.now.Running && one.now.StoppedBy == "" {
		one.now.StoppedBy = who
		u.log.Info("action is being stopped", append(one.attrs(), slog.String("stopped_by", who))...)
		one.cancel()
	}
}

// look returns the answer of a preview. One that does not return in time is left alone.
func (u *uses) look(ctx context.Context, do func(context.Context) (operate.Answer, error)) (operate.Answer, error) {
	type result struct {
		answer operate.Answer
		err    error
	}
	u.mu.Lock()
	if u.closed || u.looking == maxRunning {
		defer u.mu.Unlock()
		if u.closed {
			return operate.Answer{}, errEnding
		}
		return operate.Answer{}, errLooking
	}
	u.looking++
	bounded, cancel := context.WithTimeout(u.life, previewTime)
	ended := make(chan result, 1)
	u.work.Go(func() {
		answer, err := answering(bounded, do)
		u.mu.Lock()
		u.looking--
		u.mu.Unlock()
		ended <- result{answer, err}
	})
	u.mu.Unlock()
	defer cancel()
	select {
	case r := <-ended:
		return r.answer, r.err
	case <-ctx.Done():
		return operate.Answer{}, ctx.Err()
	case <-bounded.Done():
		return operate.Answer{}, fmt.Errorf("%w: no answer within %s", bounded.Err(), previewTime)
	}
}

// answering is guarded for a function that answers.
func answering(ctx context.Context, do func(context.Context) (operate.Answer, error)) (operate.Answer, error) {
	value, err := guarded(ctx, func(ctx context.Context) (any, error) { return do(ctx) })
	answer, _ := value.(operate.Answer)
	return answer, err
}

// drain lets no use begin any more.
func (u *uses) drain() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
}

// stop ends all uses and waits for them until ctx ends.
func (u *uses) stop(ctx context.Context) error {
	u.drain()
	u.end()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		u.work.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("console: an action still runs: %w", ctx.Err())
	}
}
