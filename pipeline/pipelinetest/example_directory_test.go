package pipelinetest_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// directory is a transport plugin. A topic is a folder of root, and a message is a file in it, with a
// name in the order of publishing. A group is a hidden folder of the topic with one file per message,
// which contains the number of deliveries and, after the ack, "done". The member that has the message
// has the lock of that file, which ends with its process. The files of messages stay.
type directory struct {
	root      string
	routes    *pipeline.Registry // knows which topics are retry topics
	published atomic.Int64       // orders messages that this process publishes in the same nanosecond
}

func (d *directory) Name() string                               { return "directory" }
func (d *directory) Kind() string                               { return "directory" } // of its origins, for deadletter.New
func (d *directory) Register(r *pipeline.Registry) error        { d.routes = r; return nil }
func (d *directory) Source(topic, group string) pipeline.Source { return d.open(topic, group) }
func (d *directory) Sink(topic string) pipeline.Sink            { return d.open(topic, "") }

func (d *directory) open(topic, group string) folder {
	return folder{d, filepath.Join(d.root, topic), pipeline.Endpoint{Kind: d.Kind(), Name: topic, Group: group}}
}

// folder is both ends of a topic. As a Delayer, a member leaves a file of a retry topic alone until it
// is due, by the clock of this machine.
type folder struct {
	d   *directory
	dir string
	at  pipeline.Endpoint
}

func (f folder) Describe() pipeline.Endpoint { return f.at }
func (f folder) Delays() error               { return nil }

// Publish writes each message, as JSON, to a hidden file, which gets its name when it is complete.
func (f folder) Publish(ctx context.Context, msgs ...*message.Message) error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return err
	}
	for _, m := range msgs {
		content, err := json.Marshal(m)
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return err
		}
		name := fmt.Sprintf("%020d-%020d-%s", time.Now().UnixNano(), f.d.published.Add(1), watermill.NewULID())
		file, err := os.Create(filepath.Join(f.dir, "."+name))
		if err != nil {
			return err
		}
		_, err = file.Write(content)
		if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
			return err
		}
		if err := os.Rename(file.Name(), filepath.Join(f.dir, name)); err != nil {
			return err
		}
	}
	names, err := os.Open(f.dir)
	if err != nil {
		return err
	}
	return errors.Join(names.Sync(), names.Close()) // the new names are durable, too
}

// Open creates the folders. With an order, a member has one message at a time.
func (f folder) Open(_ context.Context, flow pipeline.Flow) (pipeline.Subscription, error) {
	inFlight := min(cmp.Or(flow.Window, 16), cmp.Or(flow.MaxInFlight, 16))
	if flow.Order != pipeline.OrderNone {
		inFlight = 1
	}
	m := &member{folder: f, gate: flow.Gate, slots: make(chan struct{}, inFlight)}
	m.Life = pipeline.NewLife(5*time.Second, m.read)
	return m, os.MkdirAll(filepath.Join(f.dir, "."+f.at.Group), 0o700)
}

// member reads a topic for a group. Its Life has Subscribe, Drain and Close.
type member struct {
	*pipeline.Life
	folder
	gate  func() bool
	slots chan struct{} // one per message in flight
}

// read looks for messages until a Drain ends Reading, and then waits for those in flight.
func (m *member) read(ctx context.Context) error {
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	for ; m.Reading.Err() == nil; m.pause() {
		if m.gate != nil && !m.gate() {
			continue
		}
		files, err := os.ReadDir(m.dir) // sorted by name
		if err != nil {
			m.Fail(err)
		}
		for _, file := range files {
			if strings.HasPrefix(file.Name(), ".") {
				continue
			}
			select {
			case m.slots <- struct{}{}:
			case <-m.Reading.Done():
				return nil
			}
			inFlight.Go(func() {
				defer func() { <-m.slots }()
				if err := m.take(ctx, file.Name()); err != nil {
					m.Fail(err)
				}
			})
		}
	}
	return nil
}

func (m *member) pause() {
	select {
	case <-time.After(50 * time.Millisecond):
	case <-m.Reading.Done():
	}
}

// take delivers the message of a file until it is acked, unless another member has it.
func (m *member) take(ctx context.Context, name string) error {
	state, err := os.OpenFile(filepath.Join(m.dir, "."+m.at.Group, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = state.Close() }() // also releases the lock
	if syscall.Flock(int(state.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return nil
	}
	deliveries, err := io.ReadAll(state)
	if err != nil || strings.HasPrefix(string(deliveries), "done") {
		return err
	}
	delivered, _ := strconv.ParseInt(string(deliveries), 10, 64) // an empty file: none
	content, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil {
		return err
	}
	r, malformed := decode(name, content)
	isRetry, now := len(m.d.routes.RetriesInto(m.at)) > 0, time.Now()
	if isRetry && pipeline.DueTime(r.Metadata, now).After(now) {
		return nil
	}
	for ; m.Reading.Err() == nil; m.pause() {
		delivered++
		if _, err := state.WriteAt([]byte(strconv.FormatInt(delivered, 10)), 0); err != nil {
			return err
		}
		origin := pipeline.Origin{
			Kind: m.at.Kind, Source: m.at.Name, Group: m.at.Group, Position: m.at.Name + "/" + name, Key: r.Metadata.Get(pipeline.MetaKey),
		}
		if m.deliver(pipeline.WithDelivery(ctx, pipeline.Delivery{Origin: origin, Delivered: delivered, Malformed: malformed}), r) {
			_, err := state.WriteAt([]byte("done"), 0)
			return err
		}
	}
	return nil
}

// decode returns the message of a file. The chain makes a dead letter of a file that is none, so its
// payload is then all of the file, and a person can read it.
func decode(name string, content []byte) (*message.Message, error) {
	r := new(message.Message)
	err := json.Unmarshal(content, r)
	if err == nil && r.UUID == "" {
		err = errors.New("the file is JSON, but no message: it has no uuid")
	}
	if err != nil {
		return message.NewMessage(name, content), fmt.Errorf("decode file %s: %w", name, err)
	}
	return r, nil
}

// deliver reports whether the message was acked. The end of a Close abandons it.
func (m *member) deliver(ctx context.Context, r *message.Message) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	msg := r.Copy()
	msg.SetContext(ctx)
	select {
	case m.Out <- msg:
	case <-m.Reading.Done():
		return false
	}
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
	case <-m.Abandoned.Done():
	}
	return false
}
