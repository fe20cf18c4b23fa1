package kafka

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// sendAndTail runs commands on the topic t of a broker, which has one partition.
func sendAndTail(t *testing.T, brokers []string, topic string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	args[1] = strings.ReplaceAll(args[1], "TOPIC", topic)
	return runShop(t, brokers, "none-", args...)
}

func TestSendAndTail(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		topic := topicFor(t, p)
		require.NoError(t, p.ensureTopics(t.Context(), topic))
		code, out, errs := sendAndTail(t, brokers, topic, "send", "TOPIC", "first", "two\nlines", "--key", "k", "--header", "from=shop")
		require.Zero(t, code, errs)
		require.Equal(t, "2 records sent to "+topic+".\n", out)
		require.Contains(t, errs, "No route of these settings reads "+topic+": it waits for another reader.\n")
		prefix := topic + "-"
		t.Cleanup(func() { deleteTopics(t, p, prefix+"orders") })
		require.NoError(t, p.ensureTopics(t.Context(), prefix+"orders"))
		code, _, errs = runShop(t, brokers, prefix, "send", prefix+"orders", "x")
		require.Zero(t, code, errs)
		require.NotContains(t, errs, "No route")
		file := filepath.Join(t.TempDir(), "records")
		require.NoError(t, os.WriteFile(file, []byte("third\n\xff\n"), 0o600))
		code, out, errs = sendAndTail(t, brokers, topic, "send", "TOPIC", "--file", file, "--json")
		require.Zero(t, code, errs)
		require.JSONEq(t, `{"topic":"`+topic+`","sent":2}`, out)

		code, out, errs = sendAndTail(t, brokers, topic, "tail", "TOPIC", "--from", "oldest", "--count", "4", "--headers")
		require.Zero(t, code, errs)
		want := "AT@0  k  first\n  from: shop\nAT@1  k  two\uFFFDlines\n  from: shop\nAT@2    third\nAT@3    1 bytes, not UTF-8\n"
		require.Equal(t, strings.ReplaceAll(want, "AT", topic+"/0"), out)
		require.Contains(t, errs, "4 messages of kafka "+topic+".\n")

		// More than there are: the present end is the end.
		for _, flags := range [][]string{{"--count", "9"}, {"--follow=false"}} {
			code, toEnd, errs := sendAndTail(t, brokers, topic, append([]string{"tail", "TOPIC", "--from", "oldest", "--headers"}, flags...)...)
			require.Zero(t, code, errs)
			require.Equal(t, out, toEnd)
			require.Contains(t, errs, "4 messages of kafka "+topic+".\n")
		}

		// The lines of one command are the records of the other.
		_, lines, _ := sendAndTail(t, brokers, topic, "tail", "TOPIC", "--from", "oldest", "--count", "4", "--json")
		require.NoError(t, os.WriteFile(file, []byte(lines), 0o600))
		code, _, errs = sendAndTail(t, brokers, topic, "send", "TOPIC", "--file", file, "--format", "json")
		require.Zero(t, code, errs)
		_, again, _ := sendAndTail(t, brokers, topic, "tail", "TOPIC", "--from", "oldest", "--count", "8", "--json")
		for i, line := range strings.Split(strings.TrimSpace(lines), "\n") {
			require.Contains(t, again, strings.Replace(line, "@"+string(rune('0'+i)), "@"+string(rune('4'+i)), 1))
		}
	})
}

func TestSendAndTailRefuse(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		for _, tt := range []struct {
			args []string
			code int
			want string
		}{
			{[]string{"send", "a b", "x"}, app.ExitUsage, `TOPIC must be the name of a Kafka topic, got "a b"`},
			{[]string{"send", "t", "x", "--file", "f"}, app.ExitUsage, "give either VALUE or --file"},
			{[]string{"send", "t", "--file", "/absent"}, app.ExitUsage, "--file: open /absent"},
			{[]string{"send", "t", "x", "--header", "y"}, app.ExitUsage, `--header must be name=value, got "y"`},
			{[]string{"send", "t", "x", "--format", "y"}, app.ExitUsage, "--format must be text or json"},
			{[]string{"send", "t", "x", "--format", "json"}, app.ExitUsage, "a line is no JSON object"},
			{[]string{"send", "kafka-test-absent", "x"}, app.ExitBad, "kafka-test-absent"},
			{[]string{"tail", "kafka-test-absent"}, app.ExitBad, "shop: kafka has no topic kafka-test-absent\n"},
			{[]string{"tail", "kafka-test-absent", "--from", "oldest", "--count", "1"}, app.ExitBad, "shop: kafka has no topic kafka-test-absent\n"},
			{[]string{"tail", "t", "--follow=false"}, app.ExitUsage, "--follow=false needs --from oldest"},
			{[]string{"tail", "a:b"}, app.ExitUsage, `no enabled transport has a topic or stream with the name "a:b"`},
			{[]string{"tail", "t", "--from", "today"}, app.ExitUsage, "--from must be newest or oldest"},
		} {
			code, out, errs := runShop(t, brokers, "none-", tt.args...)
			require.Equal(t, tt.code, code, "%v: %s", tt.args, errs)
			require.Contains(t, errs, tt.want)
			require.Empty(t, out)
		}
	})
	code, _, errs := runShop(t, []string{"127.0.0.1:1"}, "none-", "tail", "t")
	require.Equal(t, app.ExitUnavailable, code, errs)
}

// A send reports at once that it waits for Kafka.
func TestSendReportsThatItWaits(t *testing.T) {
	t.Parallel()
	p := New()
	quick(&p.config)
	var errs bytes.Buffer
	require.Equal(t, app.ExitUnavailable, app.Main(t.Context(), app.Options{
		Name: "shop", Plugins: []pipeline.Plugin{p}, Args: []string{"send", "orders", "x"}, Stdout: io.Discard, Stderr: &errs,
		Environ: []string{"SHOP__START_TIMEOUT=1s", "SHOP__PLUGINS__KAFKA__BROKERS=127.0.0.1:1"},
	}))
	require.Contains(t, errs.String(), `"msg":"waiting for kafka"`)
}

func TestSendCountsTheDurableRecords(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		topic := topicFor(t, p)
		require.NoError(t, p.ensureTopics(t.Context(), topic))
		file := filepath.Join(t.TempDir(), "records")
		require.NoError(t, os.WriteFile(file, []byte("first\n"+strings.Repeat("x", 4<<20)+"\nlast\n"), 0o600))
		code, _, errs := sendAndTail(t, brokers, topic, "send", "TOPIC", "--file", file)
		require.NotZero(t, code)
		require.Contains(t, errs, "after 2 records: 1 of 3 not published")
	})
}
