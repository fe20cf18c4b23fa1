package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"
)

// watch opens the streams of all clients, and prints the delays of each phase after its last event.
// It fails unless each client receives each event of its job once and in order. One goroutine reads
// all sockets by epoll, which costs less than one goroutine per socket.
func watch(ctx context.Context, config string, out io.Writer) error {
	var c watchConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return err
	}
	w := watching{watchConfig: c, delays: make([][]float64, len(c.Deliveries)), out: out, clients: map[int32]*client{}}
	var err error
	if w.epoll, err = syscall.EpollCreate1(0); err != nil {
		return err
	}
	const atOnce = 250 // connections; the queue of the listener is limited
	for i := range c.Jobs * c.Clients {
		if err := w.connect(i); err != nil {
			return fmt.Errorf("client %d: %w", i, err)
		}
		for (i+1)%atOnce == 0 && w.open <= i && ctx.Err() == nil {
			if err := w.receive(); err != nil {
				return err
			}
		}
	}
	connected := false
	for ctx.Err() == nil {
		if !connected && w.open == c.Jobs*c.Clients {
			connected = true
			fmt.Fprintln(out, "connected")
		}
		if err := w.receive(); err != nil {
			return err
		}
	}
	return nil
}

// watching is the clients of a run.
type watching struct {
	watchConfig
	epoll   int
	clients map[int32]*client // by descriptor
	open    int               // have received the head of their response
	delays  [][]float64       // in ms
	arrived []arrival         // of the present phase
	phase   int               // of arrived
	out     io.Writer
	buffer  [64 << 10]byte
	events  [512]syscall.EpollEvent
}

// client is one connection.
type client struct {
	number int
	open   bool
	raw    []byte // of an unfinished chunk
	text   []byte // of an unfinished message
	last   int64  // number of the last event
}

func (w *watching) connect(number int) error {
	request := streamRequest(w.Addr, jobName(number/w.Clients))
	if w.Room != "" {
		request = waitRequest(w.Addr, w.Room, roomUser(number), streamType)
	}
	addr, err := net.ResolveTCPAddr("tcp4", w.Addr)
	if err != nil {
		return err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := syscall.Connect(fd, &syscall.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}); err != nil {
		return err
	}
	if _, err := syscall.Write(fd, []byte(request)); err != nil {
		return err
	}
	w.clients[int32(fd)] = &client{number: number}                                                                           //nolint:gosec // a descriptor
	return syscall.EpollCtl(w.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)}) //nolint:gosec // a descriptor
}

// receive reads the sockets that have data, each once. It waits half a second at most.
func (w *watching) receive() error {
	n, err := syscall.EpollWait(w.epoll, w.events[:], 500)
	if err != nil && err != syscall.EINTR {
		return err
	}
	for _, e := range w.events[:max(0, n)] {
		n, err := syscall.Read(int(e.Fd), w.buffer[:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return fmt.Errorf("refused: a stream has ended: %w", err)
		}
		if err := w.take(w.clients[e.Fd], w.buffer[:n], time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// take decodes what a client has received: a head, then chunks with messages.
func (w *watching) take(c *client, data []byte, now time.Time) error {
	c.raw = append(c.raw, data...)
	rest := c.raw
	if !c.open {
		head, body, ok := bytes.Cut(rest, []byte("\r\n\r\n"))
		if !ok {
			return nil
		}
		if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
			return fmt.Errorf("refused: the answer is %q", head)
		}
		c.open, rest = true, body
		w.open++
	}
	for {
		line, chunk, ok := bytes.Cut(rest, []byte("\r\n"))
		if !ok {
			break
		}
		n, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil || n == 0 {
			return fmt.Errorf("refused: a stream has ended with the chunk %q", line)
		}
		if len(chunk) < int(n)+2 {
			break
		}
		c.text, rest = append(c.text, chunk[:n]...), chunk[n+2:]
	}
	c.raw = append(c.raw[:0], rest...)
	text := c.text
	for {
		message, after, ok := bytes.Cut(text, []byte("\n\n"))
		if !ok {
			break
		}
		take := w.message
		if w.Room != "" {
			take = w.promotion
		}
		if err := take(c, message, now); err != nil {
			return err
		}
		text = after
	}
	c.text = append(c.text[:0], text...)
	return nil
}

// message takes a message. It counts an event, and checks its number.
func (w *watching) message(c *client, message []byte, now time.Time) error {
	id, ok := bytes.CutPrefix(message, []byte("id: "))
	if !ok {
		return nil // retry, a state, or a heartbeat
	}
	number := leading(id)
	if number != c.last+1 {
		return fmt.Errorf("refused: a client received event %d after %d: %q", number, c.last, message)
	}
	c.last = number
	_, stamp, ok := bytes.Cut(message, []byte(stampPrefix))
	if !ok {
		return fmt.Errorf("refused: no event of the benchmark: %q", message)
	}
	phase, sent, _ := bytes.Cut(stamp, []byte(","))
	p := int(leading(phase))
	w.delays[p] = append(w.delays[p], millis(now.Sub(time.Unix(0, leading(sent)))))
	if len(w.delays[p]) == w.Deliveries[p] {
		fmt.Fprintf(w.out, "%s%s\n", phaseReport(p), must(json.Marshal(delaysOf(w.delays[p]))))
	}
	return nil
}

// promotion takes a message of a waiting room. It prints the promotions of a phase after the last
// one.
func (w *watching) promotion(c *client, message []byte, now time.Time) error {
	if !bytes.HasPrefix(message, []byte("event: promoted\n")) || c.last > 0 {
		return nil // also a second one, after an outage
	}
	c.last = 1
	w.arrived = append(w.arrived, arrival{c.number, now.UnixMicro()})
	if w.phase >= len(w.Deliveries) {
		return fmt.Errorf("refused: client %d was promoted after the last phase", c.number)
	}
	if len(w.arrived) < w.Deliveries[w.phase] {
		return nil
	}
	fmt.Fprintf(w.out, "%s%s\n", phaseReport(w.phase), must(json.Marshal(w.arrived)))
	w.arrived, w.phase = nil, w.phase+1
	return nil
}
