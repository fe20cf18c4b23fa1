package faults_test

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/faults"
)

// parrot answers every line with name and the line; heard gets every line.
func parrot(t *testing.T, name string) (addr string, heard chan string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	heard = make(chan string, 100)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for in := bufio.NewScanner(conn); in.Scan(); {
					heard <- in.Text()
					_, _ = io.WriteString(conn, name+" "+in.Text()+"\n")
				}
			}()
		}
	}()
	return ln.Addr().String(), heard
}

func ask(t *testing.T, addr, line string) (string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	_, err = io.WriteString(conn, line+"\n")
	require.NoError(t, err)
	return bufio.NewReader(conn).ReadString('\n')
}

func TestProxy(t *testing.T) {
	t.Parallel()
	one, heard := parrot(t, "one")
	two, heardTwo := parrot(t, "two")
	p, err := faults.NewProxy(one)
	require.NoError(t, err)

	answer, err := ask(t, p.Addr(), "a")
	require.NoError(t, err)
	require.Equal(t, "one a\n", answer)
	require.Equal(t, "a", <-heard)

	p.CutAnswers(1)
	_, err = ask(t, p.Addr(), "b")
	require.Error(t, err)
	require.Equal(t, "b", <-heard, "the command has run")
	require.Equal(t, 1, p.Cuts())
	p.CutAnswers(0)

	p.SetDelay(60 * time.Millisecond)
	began := time.Now()
	_, err = ask(t, p.Addr(), "c")
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(began), 60*time.Millisecond)

	p.Retarget(two)
	answer, err = ask(t, p.Addr(), "d")
	require.NoError(t, err)
	require.Equal(t, "two d\n", answer)

	old, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	defer old.Close()
	_, err = io.WriteString(old, "e\n")
	require.NoError(t, err)
	answer, err = bufio.NewReader(old).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "two e\n", answer)
	p.Silence()
	_, err = io.WriteString(old, "lost\n")
	require.NoError(t, err)
	answer, err = ask(t, p.Addr(), "f")
	require.NoError(t, err, "a new connection works")
	require.Equal(t, "two f\n", answer)
	require.Equal(t, []string{"d", "e", "f"}, []string{<-heardTwo, <-heardTwo, <-heardTwo})

	require.NoError(t, p.Close())
	_, err = net.Dial("tcp", p.Addr())
	require.Error(t, err)
}
