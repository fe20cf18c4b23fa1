package packaging_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const top = ".." // of the repository

// load reads a file of Docker Compose as its own program does, with the services of all profiles.
func load(t *testing.T, file string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{file}, cli.WithProfiles([]string{"*"}), cli.WithDiscardEnvFile)
	require.NoError(t, err)
	project, err := options.LoadProject(t.Context())
	require.NoError(t, err)
	return project
}

func stack(t *testing.T) *types.Project {
	t.Helper()
	return load(t, filepath.Join(top, "compose.yaml"))
}

// ours returns the services that run the image of Millrace, by name.
func ours(project *types.Project) map[string]types.ServiceConfig {
	all := map[string]types.ServiceConfig{}
	for name, s := range project.Services {
		if s.Build != nil {
			all[name] = s
		}
	}
	return all
}

// instances returns those of them that run the service, by name.
func instances(project *types.Project) map[string]types.ServiceConfig {
	all := ours(project)
	maps.DeleteFunc(all, func(_ string, s types.ServiceConfig) bool { return len(s.Command) > 0 })
	return all
}

// mounted returns the file of the repository that a service sees under a path.
func mounted(t *testing.T, s types.ServiceConfig, target string) string {
	t.Helper()
	for _, v := range s.Volumes {
		if v.Type == types.VolumeTypeBind && v.Target == target {
			return v.Source
		}
	}
	require.FailNow(t, "not mounted", "%s in %s", target, s.Name)
	return ""
}

// decode reads a YAML file strictly.
func decode(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.Open(file)
	require.NoError(t, err)
	defer text.Close()
	d := yaml.NewDecoder(text)
	d.KnownFields(true)
	require.NoError(t, d.Decode(into), file)
}

func TestTheStackHasEachRoleAndServer(t *testing.T) {
	project := stack(t)
	require.Equal(t, []string{
		"broker", "dispatcher", "gateway", "grafana", "kafka", "migrate", "money", "postgres", "prometheus", "router", "secrets", "topics", "valkey", "worker",
	}, slices.Sorted(maps.Keys(project.Services)))
	require.Equal(t, []string{"broker", "dispatcher", "gateway", "router", "worker"}, slices.Sorted(maps.Keys(instances(project))))
	for name, s := range ours(project) {
		require.Equal(t, "millrace:local", s.Image, name)
		require.FileExists(t, filepath.Join(s.Build.Context, s.Build.Dockerfile), name)
	}
	// The servers are those that the tests of the repository run on.
	tested := load(t, filepath.Join(top, "e2e/services/compose.yaml"))
	for _, name := range []string{"kafka", "valkey", "postgres"} {
		require.Equal(t, tested.Services[name].Image, project.Services[name].Image)
	}
}

func TestWhatIsMountedExists(t *testing.T) {
	project := stack(t)
	volumes, files := map[string]bool{}, map[string]bool{}
	for name, s := range project.Services {
		for _, v := range s.Volumes {
			switch v.Type {
			case types.VolumeTypeBind:
				_, err := os.Stat(v.Source)
				require.NoError(t, err, name)
				require.True(t, v.ReadOnly, "%s changes %s", name, v.Source)
				files[v.Source] = true
			case types.VolumeTypeVolume:
				require.Contains(t, project.Volumes, v.Source, name)
				volumes[v.Source] = true
			default:
				require.Fail(t, "another kind of volume", "%s: %s", name, v.Type)
			}
		}
	}
	require.Len(t, volumes, len(project.Volumes), "each volume is used")
	for _, pattern := range []string{"compose/*.yaml", "compose/*.sh", "compose/*/*.yaml"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		for _, file := range found {
			whole, err := filepath.Abs(file)
			require.NoError(t, err)
			require.True(t, files[whole], "no service mounts %s", file)
		}
	}
}

func TestTheOrderOfTheStart(t *testing.T) {
	project := stack(t)
	once := map[string]bool{}
	for name, s := range project.Services {
		for on, dependency := range s.DependsOn {
			other := project.Services[on]
			switch dependency.Condition {
			case types.ServiceConditionHealthy:
				require.NotNil(t, other.HealthCheck, "%s waits for the health of %s", name, on)
			case types.ServiceConditionCompletedSuccessfully:
				once[on] = true
			default:
				require.Equal(t, "money", on, "%s waits for the mere start of %s", name, on)
			}
		}
		// Without this, Compose would start a service before its secrets are there.
		if slices.ContainsFunc(s.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Source == "secrets" }) && name != "secrets" && name != "worker" {
			require.Contains(t, s.DependsOn, "secrets", name)
		}
	}
	require.Equal(t, map[string]bool{"migrate": true, "secrets": true, "topics": true}, once)
	for name, s := range project.Services {
		require.Equal(t, once[name], s.Restart == "no", "%s is restarted unless it runs once", name)
	}
	worker := project.Services["worker"]
	require.Equal(t, []string{"migrate", "money", "topics", "valkey"}, slices.Sorted(maps.Keys(worker.DependsOn)))
	require.Equal(t, "false", *worker.Environment["MILLRACE__MIGRATE"], "only migrate changes tables")
	require.Equal(t, types.ShellCommand{"migrate"}, project.Services["migrate"].Command)
	require.Equal(t, types.ShellCommand{"topics", "create", "--who", "compose", "--why", "the stack starts"}, project.Services["topics"].Command)
}

// stopTimeout is the default of the setting, which the file of the stack does not change.
func stopTimeout(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, "configs/millrace.schema.json"))
	require.NoError(t, err)
	var schema struct {
		Properties struct {
			StopTimeout struct{ Default string } `yaml:"stop_timeout"`
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &schema)) // JSON is YAML
	settings, err := os.ReadFile("compose/millrace.yaml")
	require.NoError(t, err)
	require.NotContains(t, string(settings), "stop_timeout")
	d, err := time.ParseDuration(schema.Properties.StopTimeout.Default)
	require.NoError(t, err)
	return d
}

func TestContainersOfMillraceMayDoLittle(t *testing.T) {
	project, drain := stack(t), stopTimeout(t)
	for name, s := range ours(project) {
		require.True(t, s.ReadOnly, name)
		require.Equal(t, []string{"ALL"}, s.CapDrop, name)
		require.Empty(t, s.CapAdd, name)
		require.Equal(t, []string{"no-new-privileges:true"}, s.SecurityOpt, name)
		require.Equal(t, types.StringList{"/tmp"}, s.Tmpfs, name)
		require.Empty(t, s.User, "%s runs as the user of the image", name)
		require.NotNil(t, s.StopGracePeriod, name)
		require.GreaterOrEqual(t, time.Duration(*s.StopGracePeriod), drain+10*time.Second, "%s is killed while it drains", name)
	}
	require.Empty(t, project.Services["money"].Volumes, "the simulator needs no secret")
	for name, s := range project.Services {
		for _, port := range s.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s publishes port %s to others", name, port.Published)
		}
		require.Regexp(t, `:[a-z0-9.]+$`, s.Image, "%s: the version of the image", name)
		require.NotContains(t, s.Image, ":latest", name)
		for key, value := range s.Environment {
			if regexp.MustCompile(`(?i)password|secret|token|dsn`).MatchString(key) {
				require.Regexp(t, `^/run/secrets/[a-z-]+$`, *value, "%s: %s is a secret and comes from a file", name, key)
			}
		}
	}
}

func TestPrometheusAndGrafanaReadTheFilesOfTheRepository(t *testing.T) {
	project := stack(t)
	abs := func(path string) string {
		whole, err := filepath.Abs(filepath.Join(top, path))
		require.NoError(t, err)
		return whole
	}
	prometheus, grafana := project.Services["prometheus"], project.Services["grafana"]
	require.Contains(t, prometheus.Command, "--config.file=/etc/prometheus/prometheus.yaml")
	require.Equal(t, abs("configs/prometheus/alerts.yaml"), mounted(t, prometheus, "/etc/prometheus/alerts.yaml"))
	require.Equal(t, abs("configs/grafana"), mounted(t, grafana, "/etc/dashboards"), "all dashboards")
	require.FileExists(t, abs("configs/grafana/millrace.json"))
	require.Equal(t, "/etc/dashboards/millrace.json", *grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])

	var scrape struct {
		Global    map[string]string `yaml:"global"`
		RuleFiles []string          `yaml:"rule_files"`
		Configs   []struct {
			Job string `yaml:"job_name"`
			DNS []struct {
				Names   []string
				Type    string
				Port    int
				Refresh string `yaml:"refresh_interval"`
			} `yaml:"dns_sd_configs"`
		} `yaml:"scrape_configs"`
	}
	decode(t, mounted(t, prometheus, "/etc/prometheus/prometheus.yaml"), &scrape)
	require.Equal(t, []string{"alerts.yaml"}, scrape.RuleFiles)
	require.Len(t, scrape.Configs, 1)
	require.Equal(t, "millrace", scrape.Configs[0].Job, "alerts and dashboards expect it")
	require.Len(t, scrape.Configs[0].DNS, 1)
	dns := scrape.Configs[0].DNS[0]
	require.Equal(t, slices.Sorted(maps.Keys(instances(project))), slices.Sorted(slices.Values(dns.Names)))
	require.Equal(t, "A", dns.Type)
	var settings struct {
		Plugins struct{ Telemetry struct{ Listen string } }
	}
	text, err := os.ReadFile("compose/millrace.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &settings))
	require.Equal(t, ":9464", settings.Plugins.Telemetry.Listen)
	require.Equal(t, 9464, dns.Port)

	var sources struct {
		Version int `yaml:"apiVersion"`
		Sources []struct {
			Name, Type, URL string
			IsDefault       bool              `yaml:"isDefault"`
			Data            map[string]string `yaml:"jsonData"`
		} `yaml:"datasources"`
	}
	decode(t, mounted(t, grafana, "/etc/grafana/provisioning/datasources/millrace.yaml"), &sources)
	require.Len(t, sources.Sources, 1)
	require.Equal(t, "prometheus", sources.Sources[0].Type)
	require.Equal(t, "http://prometheus:9090", sources.Sources[0].URL)
	require.True(t, sources.Sources[0].IsDefault, "the dashboards take the default one")
	require.Equal(t, scrape.Global["scrape_interval"], sources.Sources[0].Data["timeInterval"])
	var dashboards struct {
		Version   int `yaml:"apiVersion"`
		Providers []struct {
			Name, Type string
			Options    struct{ Path string }
		}
	}
	decode(t, mounted(t, grafana, "/etc/grafana/provisioning/dashboards/millrace.yaml"), &dashboards)
	require.Len(t, dashboards.Providers, 1)
	require.Equal(t, "/etc/dashboards", dashboards.Providers[0].Options.Path)
}

// secrets runs the script of the stack, and returns the folder with what it wrote.
func secrets(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may give a secret to another user")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755)) // the user of the image must reach it
	writeSecrets(t, dir)
	return dir
}

func writeSecrets(t *testing.T, dir string) {
	t.Helper()
	service := stack(t).Services["secrets"]
	require.Equal(t, types.ShellCommand{"sh", "/secrets.sh", "/run/secrets"}, service.Entrypoint)
	out, err := exec.CommandContext(t.Context(), "sh", mounted(t, service, "/secrets.sh"), dir).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	all := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		info, err := e.Info()
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode(), e.Name())
		all[e.Name()] = string(text)
	}
	return all
}

func TestSecretsAreMadeOnceAndNamedByTheServices(t *testing.T) {
	dir := secrets(t)
	before := contents(t, dir)
	require.Equal(t, []string{"grafana-password", "ledger-dsn", "postgres-password", "shop-token", "token.pem"}, slices.Sorted(maps.Keys(before)))
	require.Equal(t, "postgres://millrace:"+before["postgres-password"]+"@postgres:5432/millrace?sslmode=disable", before["ledger-dsn"])
	writeSecrets(t, dir)
	require.Equal(t, before, contents(t, dir))
	other := contents(t, secrets(t))
	for name := range before {
		require.NotEqual(t, before[name], other[name], "%s is the same in two installations", name)
	}

	project := stack(t)
	settings, err := os.ReadFile("compose/millrace.yaml")
	require.NoError(t, err)
	text := string(settings)
	for _, s := range project.Services {
		for _, value := range s.Environment {
			text += "\n" + *value
		}
	}
	named := map[string]bool{}
	for _, match := range regexp.MustCompile(`/run/secrets/([a-z.-]+)`).FindAllStringSubmatch(text, -1) {
		named[match[1]] = true
	}
	require.Equal(t, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(named)))

	database := project.Services["postgres"].Environment
	require.Equal(t, "millrace", *database["POSTGRES_USER"])
	require.Equal(t, "millrace", *database["POSTGRES_DB"])
	require.Equal(t, "PLAINTEXT://kafka:9092", *project.Services["kafka"].Environment["KAFKA_ADVERTISED_LISTENERS"])
	require.Contains(t, string(settings), "brokers: [kafka:9092]")
}
