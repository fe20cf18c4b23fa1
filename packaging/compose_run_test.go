package packaging_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/jackc/pgx/v5"
	"github.com/mattn/go-shellwords"
	"github.com/stretchr/testify/require"
)

// composed is the stack on this machine. Each service runs the image with the command, the environment and the
// volumes that Compose gives it, and has a loopback address of its own, as it has an address on Compose's network.
// Only addresses are replaced.
type composed struct {
	t         *testing.T
	image     container
	project   *types.Project
	secrets   string
	addresses []string // old and new ones
	env       []string // settings of the servers, which are shared with other tests
	running   []*instance
}

// instance is a container of a service.
type instance struct {
	*process
	service, ip string
}

func newComposed(t *testing.T) *composed {
	t.Helper()
	c := &composed{t: t, image: newContainer(t), project: stack(t), secrets: secrets(t)}
	c.addresses = []string{"http://money:8089", "http://" + c.ip("money", 0) + ":8089", "10.0.0.0/8", "127.0.0.0/8"}
	for name, s := range c.project.Services {
		for _, port := range s.Ports {
			c.addresses = append(c.addresses,
				fmt.Sprintf("%s:%s", port.HostIP, port.Published), fmt.Sprintf("%s:%d", c.ip(name, 0), port.Target))
		}
	}
	return c
}

// ip returns the address of an instance of a service, which no other process has.
func (c *composed) ip(service string, number int) string {
	names := slices.Sorted(maps.Keys(c.project.Services))
	id := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+id/250%250, 1+id%250, 1+10*slices.Index(names, service)+number)
}

// container starts the image as a container of a service, which has the address ip.
func (c *composed) container(name, ip string, args ...string) *process {
	c.t.Helper()
	s, args := c.project.Services[name], slices.Clone(args)
	replace := strings.NewReplacer(append([]string{`":9464"`, `"` + ip + `:9464"`}, c.addresses...)...).Replace
	v := volumes{temporary: len(s.Tmpfs) > 0, readOnly: map[string]string{}}
	for _, m := range s.Volumes {
		switch m.Type {
		case types.VolumeTypeBind:
			text, err := os.ReadFile(m.Source)
			require.NoError(c.t, err)
			file := filepath.Join(c.t.TempDir(), "file")
			require.NoError(c.t, os.WriteFile(file, []byte(replace(string(text))), 0o644))
			v.readOnly[m.Target] = file
		case types.VolumeTypeVolume:
			require.Equal(c.t, "secrets", m.Source, name)
			v.readOnly[m.Target] = c.secrets
		}
	}
	env := append([]string{"MILLRACE__PLUGINS__WEB__LISTEN=" + ip + ":8080"}, c.env...)
	for key, value := range s.Environment {
		env = append(env, key+"="+*value)
	}
	for i, arg := range args {
		args[i] = replace(strings.Replace(arg, ":8089", ip+":8089", 1))
	}
	return c.image.start(c.t, v, env, args...)
}

// up starts a service after those that it depends on, until it has so many instances. A service that runs once runs
// each time.
func (c *composed) up(name string, instances int) {
	c.t.Helper()
	s := c.project.Services[name]
	if s.Build == nil {
		return // a server of this machine
	}
	for on := range s.DependsOn {
		c.up(on, 1)
	}
	if s.Restart == "no" {
		p := c.container(name, c.ip(name, 0), s.Command...)
		require.Zero(c.t, p.wait(), "%s: %s", name, p.output)
		return
	}
	for number := len(c.instances(name)); number < instances; number++ {
		ip := c.ip(name, number)
		p := c.container(name, ip, s.Command...)
		if len(s.Command) > 0 {
			p.eventually("it listens", func() bool { return strings.Contains(p.output.String(), "http://"+ip) })
		} else {
			p.ready()
		}
		c.running = append(c.running, &instance{p, name, ip})
	}
}

func (c *composed) instances(service string) (list []*instance) {
	for _, i := range c.running {
		if i.service == service {
			list = append(list, i)
		}
	}
	return list
}

// exec runs a command in a container that runs.
func (c *composed) exec(service string, args ...string) string {
	c.t.Helper()
	require.NotEmpty(c.t, c.instances(service), "%s does not run", service)
	require.Equal(c.t, "/usr/bin/"+args[0], c.image.config.Entrypoint[0])
	p := c.container(service, c.ip(service, 0), args[1:]...)
	require.Zero(c.t, p.wait(), "%v: %s", args, p.output)
	return p.output.String()
}

// down stops all containers, those that need others first.
func (c *composed) down() {
	c.t.Helper()
	for _, i := range slices.Backward(c.running) {
		i.stops()
	}
	c.running = nil
}

func TestTheSettingsOfEachServiceAreValid(t *testing.T) {
	t.Parallel()
	c := newComposed(t)
	for name, s := range ours(c.project) {
		if name == "money" { // it reads no settings
			require.Empty(t, s.Environment)
			continue
		}
		p := c.container(name, c.ip(name, 0), "validate")
		require.Zero(t, p.wait(), "%s: %s", name, p.output)
		require.Contains(t, p.output.String(), "The settings are valid (profile "+*s.Environment["MILLRACE__PROFILE"]+", ")
	}
	require.NoError(t, os.Chown(filepath.Join(c.secrets, "token.pem"), 0, 0))
	require.NoError(t, os.Remove(filepath.Join(c.secrets, "ledger-dsn")))
	for _, name := range []string{"broker", "worker"} {
		p := c.container(name, c.ip(name, 0), "validate")
		require.Equal(t, 2, p.wait(), "%s: %s", name, p.output)
		require.Contains(t, p.output.String(), "/run/secrets/", "the secret that it can not read")
	}
}

// schema makes a schema in PostgreSQL, which is removed with the test, and returns a DSN for it.
func schema(t *testing.T, dsn string) string {
	t.Helper()
	ctx := t.Context()
	admin, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	name := fmt.Sprintf("compose_%d_%d", os.Getpid(), time.Now().UnixNano())
	_, err = admin.Exec(ctx, "CREATE SCHEMA "+name)
	require.NoError(t, err)
	require.NoError(t, admin.Close(ctx))
	t.Cleanup(func() {
		ctx := context.Background() // the one of the test has ended
		admin, err := pgx.Connect(ctx, dsn)
		require.NoError(t, err)
		defer admin.Close(ctx)
		_, err = admin.Exec(ctx, "DROP SCHEMA "+name+" CASCADE")
		require.NoError(t, err)
	})
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	query := u.Query()
	query.Set("search_path", name)
	u.RawQuery = query.Encode()
	return u.String()
}

// database returns the number of an empty database of Valkey that no other test has, also in another run.
func database(t *testing.T, addr string) int {
	t.Helper()
	for number := 15; number > 0; number-- {
		// The name that the tests of the other modules lock, too.
		name := fmt.Sprintf("millrace-test-redis-%s-%d.lock", strings.ReplaceAll(addr, ":", "-"), number)
		f, err := os.OpenFile(filepath.Join(os.TempDir(), name), os.O_CREATE|os.O_RDWR, 0o600)
		require.NoError(t, err)
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			f.Close()
			continue
		}
		t.Cleanup(func() { f.Close() })
		flush := func() {
			conn, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer conn.Close()
			_, err = fmt.Fprintf(conn, "SELECT %d\r\nFLUSHDB\r\nQUIT\r\n", number)
			require.NoError(t, err)
			answer := bufio.NewReader(conn)
			for range 3 {
				line, err := answer.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, "+OK\r\n", line)
			}
		}
		flush()
		t.Cleanup(flush)
		return number
	}
	t.Skip("each database of Valkey is in use")
	return 0
}

// server returns the address of a real server of the tests.
func server(t *testing.T, names ...string) string {
	t.Helper()
	for _, name := range names {
		if addr := os.Getenv(name); addr != "" {
			return addr
		}
	}
	t.Skipf("%s is not set", names[0])
	return ""
}

// pageCommands returns the commands of the page for operators, as words.
func pageCommands(t *testing.T) (list [][]string) {
	t.Helper()
	page, err := os.ReadFile("../docs/operating.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## With Docker Compose\n")
	block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(section)
	require.NotNil(t, block)
	for line := range strings.Lines(block[1]) {
		line, _, _ = strings.Cut(line, " # ")
		list = append(list, must(shellwords.Parse(line))(t))
	}
	return list
}

// must returns the value of a call that may not fail: must(f())(t).
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		require.NoError(t, err)
		return value
	}
}

// The commands of the page run in their order, in containers that have only what the repository ships, on real
// servers.
func TestTheCommandsOfTheStackOnRealServers(t *testing.T) {
	kafka := server(t, "MILLRACE_TEST_KAFKA")
	valkey := server(t, "MILLRACE_TEST_VALKEY", "MILLRACE_TEST_REDIS")
	dsn := schema(t, server(t, "MILLRACE_TEST_POSTGRES"))
	c := newComposed(t)
	require.NoError(t, os.WriteFile(filepath.Join(c.secrets, "ledger-dsn"), []byte(dsn), 0o600)) // its owner stays
	promotion := fmt.Sprint(time.Now().UnixMicro())                                              // the topics are those of earlier runs, too
	c.addresses = append(c.addresses, "kafka:9092", kafka, "valkey:6379", valkey, "12345", promotion)
	c.env = []string{fmt.Sprintf("MILLRACE__PLUGINS__REDIS__DB=%d", database(t, valkey))}

	for _, words := range pageCommands(t) {
		line := strings.Join(words, " ")
		t.Log(line)
		switch {
		case strings.HasPrefix(line, "docker compose exec "):
			if strings.Contains(line, "campaign status") {
				c.paid(words[3], words[4:])
				continue
			}
			said := c.exec(words[3], words[4:]...)
			if strings.Contains(line, "jobs watch") {
				require.Contains(t, said, `scan  {"percent":50}`)
				require.Contains(t, said, "done")
			}
		case strings.HasPrefix(line, "curl --no-buffer --header "):
			c.admitted(words[3], words[4])
		case line == "docker compose --profile jobs --profile room down":
			c.down()
		default:
			c.upLine(words)
		}
	}
	require.Empty(t, c.running, "the page ends the stack")
}

// upLine does what a line with `up` does.
func (c *composed) upLine(words []string) {
	c.t.Helper()
	var profiles []string
	scaled := map[string]int{}
	rest := words[:2:2]
	for i := 2; i < len(words); i++ {
		switch words[i] {
		case "--profile":
			i++
			profiles = append(profiles, words[i])
		case "--scale":
			i++
			name, number, _ := strings.Cut(words[i], "=")
			scaled[name] = must(strconv.Atoi(number))(c.t)
		default:
			rest = append(rest, words[i])
		}
	}
	require.Equal(c.t, []string{"docker", "compose", "up", "--detach", "--wait"}, rest)
	for name, s := range c.project.Services {
		if len(s.Profiles) == 0 || slices.ContainsFunc(s.Profiles, func(p string) bool { return slices.Contains(profiles, p) }) {
			c.up(name, max(1, scaled[name]))
		}
	}
}

// paid repeats the command until the promotion is known and settled, which takes longer than the command before it,
// and reads the Money API's own book.
func (c *composed) paid(service string, command []string) {
	c.t.Helper()
	var p *process
	finished := func() bool {
		p = c.container(service, c.ip(service, 0), append(slices.Clone(command[1:]), "--json")...)
		var status struct {
			Promotions []struct{ Finished bool }
		}
		return p.wait() == 0 && json.Unmarshal([]byte(p.output.String()), &status) == nil &&
			len(status.Promotions) == 1 && status.Promotions[0].Finished
	}
	for end := time.Now().Add(5 * time.Minute); !finished(); { // a container takes long enough
		require.True(c.t, time.Now().Before(end), "%v: %s", command, p.output)
	}
	promotion := strings.NewReplacer(c.addresses...).Replace(command[len(command)-1])
	var book struct{ Entries []struct{} }
	c.get("/_sim/journal?type=POINT&promotion="+promotion+"&limit=2000", &book)
	require.Len(c.t, book.Entries, 1000)
	var summary struct {
		Double int `json:"doubled"`
	}
	c.get("/_sim/summary", &summary)
	require.Zero(c.t, summary.Double)
}

// get reads an answer of the simulated Money API.
func (c *composed) get(path string, into any) {
	c.t.Helper()
	answer, err := http.Get("http://" + c.instances("money")[0].ip + ":8089" + path)
	require.NoError(c.t, err)
	defer answer.Body.Close()
	require.Equal(c.t, http.StatusOK, answer.StatusCode)
	require.NoError(c.t, json.NewDecoder(answer.Body).Decode(into))
}

// admitted reads the stream of a waiting user until the promotion.
func (c *composed) admitted(header, address string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.NewReplacer(c.addresses...).Replace(address), nil)
	require.NoError(c.t, err)
	name, value, _ := strings.Cut(header, ": ")
	request.Header.Set(name, value)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(c.t, err)
	defer answer.Body.Close()
	require.Equal(c.t, http.StatusOK, answer.StatusCode)
	var events []string
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if events = append(events, lines.Text()); lines.Text() == "event: promoted" {
			return
		}
	}
	require.FailNow(c.t, "ann was not promoted", "%s", strings.Join(events, "\n"))
}
