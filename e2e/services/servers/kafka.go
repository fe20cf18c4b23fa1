package servers

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

//go:embed kafka-pom.xml
var kafkaPOM []byte

//go:embed kafka-server.properties
var kafkaProperties string

const kafkaVersion = "4.3.1" // also in kafka-pom.xml and compose.yaml; a test compares them

func (f *Fleet) kafka(addr, controller string) server {
	libs := filepath.Join(f.opts.Cache, "kafka-"+kafkaVersion)
	properties := filepath.Join(f.data(Kafka), "server.properties")
	return server{
		name: Kafka, addr: addr, host: addr, term: syscall.SIGTERM, patience: 4 * time.Minute,
		prepare: func(ctx context.Context) (string, error) {
			if f.opts.Join == nil && taken(ctx, controller) {
				return "", fmt.Errorf("%s, for its controller, is in use by something this folder did not start; stop that, or %s", controller, movePorts)
			}
			if err := f.java(ctx); err != nil {
				return "", err
			}
			from, err := f.kafkaJars(ctx, libs)
			if err != nil {
				return "", err
			}
			return from, f.kafkaFormat(ctx, libs, properties, addr, controller)
		},
		command: func() (*exec.Cmd, error) {
			args := []string{
				"-Xms128m", "-Xmx512m", "-XX:+UseSerialGC",
				"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
				"-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss",
			}
			if !f.opts.Optimize {
				args = append(args, "-XX:TieredStopAtLevel=1")
			}
			//nolint:noctx // it outlives this process; Down ends it
			return exec.Command("java", append(args, "-cp", filepath.Join(libs, "*"), "kafka.Kafka", properties)...), nil
		},
		answers: kafkaAnswers,
	}
}

// kafkaAnswers requests the broker's metadata, as any client does first.
func kafkaAnswers(ctx context.Context, addr string) (string, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(addr, ",")...),
		kgo.RequestRetries(0), kgo.RetryTimeout(2*time.Second), kgo.DialTimeout(2*time.Second))
	if err != nil {
		return "", err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	meta, err := admin.BrokerMetadata(ctx)
	if err != nil {
		return "", err
	}
	if len(meta.Brokers) == 0 {
		return "", errors.New("its cluster has no broker yet")
	}
	versions, err := admin.ApiVersions(ctx)
	if err != nil {
		return "", err
	}
	for _, v := range versions {
		if v.Err == nil {
			return "kafka " + v.VersionGuess(), nil
		}
	}
	return "kafka", nil
}

// java makes sure that there is a Java 17 or newer.
func (f *Fleet) java(ctx context.Context) error {
	if _, err := exec.LookPath("java"); err != nil {
		if err := f.apt.install(ctx, f, "", "default-jre-headless"); err != nil {
			return err
		}
	}
	out, err := exec.CommandContext(ctx, "java", "-version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("java -version: %w", err)
	}
	// openjdk version "17.0.15" 2025-04-15
	_, rest, _ := strings.Cut(string(out), `"`)
	number, _, _ := strings.Cut(rest, ".")
	if major, err := strconv.Atoi(strings.Trim(strings.SplitN(number, `"`, 2)[0], `"-ea`)); err != nil || major < 17 {
		return fmt.Errorf("kafka %s needs Java 17 or newer, this is %q", kafkaVersion, strings.SplitN(string(out), "\n", 2)[0])
	}
	return nil
}

// kafkaJars fetches Kafka's jars with Maven, once, and puts them into place only when all are
// there.
func (f *Fleet) kafkaJars(ctx context.Context, libs string) (string, error) {
	if _, err := os.Stat(libs); err == nil {
		return "Maven's jars fetched before", nil
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		if err := f.apt.install(ctx, f, "", "maven"); err != nil {
			return "", err
		}
	}
	f.report("fetching Apache Kafka %s with Maven", kafkaVersion)
	if err := os.MkdirAll(f.opts.Cache, 0o755); err != nil {
		return "", fmt.Errorf("kafka jars: %w", err)
	}
	work, err := os.MkdirTemp(f.opts.Cache, "kafka-fetch-")
	if err != nil {
		return "", fmt.Errorf("kafka jars: %w", err)
	}
	defer os.RemoveAll(work)
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), kafkaPOM, 0o644); err != nil {
		return "", fmt.Errorf("kafka jars: %w", err)
	}
	out := filepath.Join(work, "libs")
	for try := 1; ; try++ {
		cmd := exec.CommandContext(ctx, "mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory="+out)
		cmd.Dir = work
		if err = run(cmd); err == nil {
			break
		}
		if try == 3 || ctx.Err() != nil {
			return "", fmt.Errorf("kafka jars: %w", err)
		}
		f.report("kafka: %v; once more", err)
	}
	if err := os.Chmod(out, 0o755); err != nil {
		return "", fmt.Errorf("kafka jars: %w", err)
	}
	if err := os.Rename(out, libs); err != nil && !errors.Is(err, fs.ErrExist) { // another process may be faster
		return "", fmt.Errorf("kafka jars: %w", err)
	}
	return "Maven's jars", nil
}

// kafkaFormat writes the settings and, on the first start, formats the data folder.
func (f *Fleet) kafkaFormat(ctx context.Context, libs, properties, addr, controller string) error {
	data := filepath.Join(f.data(Kafka), "data")
	if err := os.MkdirAll(f.data(Kafka), 0o755); err != nil {
		return fmt.Errorf("kafka data: %w", err)
	}
	t, err := template.New("server.properties").Parse(kafkaProperties)
	if err != nil {
		return fmt.Errorf("kafka settings: %w", err)
	}
	var text bytes.Buffer
	cluster := clusterID()
	if j := f.opts.Join; j != nil {
		cluster, controller = j.ID, j.Controller
	}
	if err := t.Execute(&text, map[string]any{"Addr": addr, "Controller": controller, "Data": data, "Joins": f.opts.Join != nil, "Guard": f.opts.Guard}); err != nil {
		return fmt.Errorf("kafka settings: %w", err)
	}
	if err := os.WriteFile(properties, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("kafka settings: %w", err)
	}
	if _, err := os.Stat(filepath.Join(data, "meta.properties")); err == nil {
		return nil
	}
	if err := os.RemoveAll(data); err != nil { // a format that was cut short
		return fmt.Errorf("kafka data: %w", err)
	}
	cmd := exec.CommandContext(ctx, "java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
		"-cp", filepath.Join(libs, "*"), "kafka.tools.StorageTool", "format", "-t", cluster, "-c", properties)
	if g := f.opts.Guard; g != nil {
		cmd.Args = append(cmd.Args, "--add-scram", fmt.Sprintf("SCRAM-SHA-512=[name=%s,password=%s]", g.User, g.Password))
	}
	if err := run(cmd); err != nil {
		return fmt.Errorf("kafka data: %w", err)
	}
	return nil
}

// clusterID returns a random id in Kafka's form: 16 bytes in URL-safe Base64, never beginning with
// a dash.
func clusterID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[0] &= 0x7f
	return base64.RawURLEncoding.EncodeToString(b[:])
}
