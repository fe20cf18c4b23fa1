package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

// laid returns the values of the smallest example with others over them.
func laid(t *testing.T, text string) map[string]any {
	t.Helper()
	v := exampleValues(t, "examples/minimal.yaml")
	overlay(v, values(t, text))
	return v
}

func overlay(into, over map[string]any) {
	for key, value := range over {
		below, isMap := value.(map[string]any)
		if there, has := into[key].(map[string]any); isMap && has {
			overlay(there, below)
			continue
		}
		into[key] = value
	}
}

func TestTheGracePeriodFollowsTheSettings(t *testing.T) {
	t.Parallel()
	for stop, want := range map[string]int64{
		"":                          40,
		"stop_timeout: 1m30s":       100,
		"stop_timeout: 1h":          3610,
		"stop_timeout: 500ms":       11,
		"stop_timeout: 2.5s":        13,
		"stop_timeout: 1h1m1s500ms": 3672,
	} {
		o, err := decode(documents(t, laid(t, fmt.Sprintf("settings: {%s}", stop))))
		require.NoError(t, err)
		require.Equal(t, want, *o.deployments[0].Spec.Template.Spec.TerminationGracePeriodSeconds, stop)
	}
	o, err := decode(documents(t, laid(t, "{settings: {stop_timeout: 1m}, roles: {worker: {settings: {stop_timeout: 50s}}}}")))
	require.NoError(t, err)
	require.EqualValues(t, 60, *o.deployments[0].Spec.Template.Spec.TerminationGracePeriodSeconds, "the role has the last word")
}

func TestOtherSettingsStartOtherPods(t *testing.T) {
	t.Parallel()
	sums := map[string]string{}
	for _, text := range []string{"{}", "settings: {log: {level: warn}}", "roles: {worker: {settings: {log: {level: debug}}}}"} {
		o, err := decode(documents(t, laid(t, text)))
		require.NoError(t, err)
		sum := o.deployments[0].Spec.Template.Annotations["checksum/settings"]
		require.Empty(t, sums[sum], text)
		sums[sum] = text
	}
}

func TestWrongValuesAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`image: {repository: ""}`:                                   "image.repository: must be set, such as registry.example.com/millrace",
		`image: {digest: "sha256:12"}`:                              "'/image/digest': 'sha256:12' does not match pattern",
		`image: {pullPolicy: Sometimes}`:                            "'/image/pullPolicy': value must be one of",
		`secrets: {name: ""}`:                                       "secrets.name: must be the name of a Secret, because settings of the role worker read /run/secrets/millrace/ledger-dsn",
		`settings: {stop_timeout: 30}`:                              "settings.stop_timeout: must be a duration such as 30s or 1m30s, got 30",
		`settings: {stop_timeout: soon}`:                            "settings.stop_timeout: must be a duration such as 30s or 1m30s, got soon",
		`settings: {plugins: {telemetry: {listen: "localhost:1"}}}`: "settings.plugins.telemetry.listen: must be a port of all addresses, such as :9464, got localhost:1",
		`roles: {gateway: {enabled: true, settings: {plugins: {web: {listen: "127.0.0.1:80"}}}}}`: "settings.plugins.web.listen: must be a port of all addresses",
		`roles: {workers: {}}`:                            "'/roles': additional properties 'workers' not allowed",
		`roles: {worker: {replica: 3}}`:                   "'/roles/worker': additional properties 'replica' not allowed",
		`roles: {worker: {replicas: "3"}}`:                "'/roles/worker/replicas': got string, want integer",
		`roles: {worker: {service: {port: 80}}}`:          "'/roles/worker': additional properties 'service' not allowed",
		`roles: {worker: {autoscaling: {enabled: true}}}`: "'/roles/worker/autoscaling/triggers': minItems: got 0, want 1",
		`pod: {env: [{value: x}]}`:                        "'/pod/env/0': missing property 'name'",
		`monitoring: {serviceMonitor: {interval: often}}`: "'/monitoring/serviceMonitor/interval': 'often' does not match pattern",
		`topologySpread: {whenUnsatisfiable: Never}`:      "'/topologySpread/whenUnsatisfiable': value must be one of",
		`imagePullSecret: x`:                              "additional properties 'imagePullSecret' not allowed",
	} {
		_, err := render(t, laid(t, text))
		require.ErrorContains(t, err, want, text)
	}
}

func TestEachSwitchOfTheChart(t *testing.T) {
	t.Parallel()
	kinds := func(text string) map[string]int {
		o, err := decode(documents(t, laid(t, text)))
		require.NoError(t, err)
		return map[string]int{
			"Deployment": len(o.deployments), "Job": len(o.jobs), "budget": len(o.budgets), "scaler": len(o.scalers),
			"policy": len(o.policies), "monitor": len(o.monitors), "rule": len(o.rules), "Service": len(o.services),
		}
	}
	require.Equal(t, map[string]int{"Deployment": 1, "Job": 1, "budget": 1, "scaler": 0, "policy": 0, "monitor": 0, "rule": 0, "Service": 1}, kinds("{}"))
	require.Zero(t, kinds("migration: {enabled: false}")["Job"])
	require.Zero(t, kinds("roles: {worker: {replicas: 1}}")["budget"])
	require.Equal(t, 2, kinds("roles: {gateway: {enabled: true}}")["Service"])
	require.Equal(t, 1, kinds("networkPolicy: {enabled: true}")["policy"])

	o, err := decode(documents(t, laid(t, "{migration: {topics: false}, networkPolicy: {enabled: true}}")))
	require.NoError(t, err)
	require.Empty(t, o.jobs[0].Spec.Template.Spec.InitContainers)
	require.Equal(t, []string{"migrate", "--config", "/etc/millrace/millrace.yaml"}, o.jobs[0].Spec.Template.Spec.Containers[0].Args)
	require.Empty(t, o.policies[0].Spec.Ingress[0].From, "everybody")
	require.Len(t, o.policies[0].Spec.PolicyTypes, 1, "who names no rule may connect to everything")

	o, err = decode(documents(t, laid(t, "roles: {worker: {settings: {plugins: {kafka: {enabled: false}}}}}")))
	require.NoError(t, err)
	require.Empty(t, o.jobs[0].Spec.Template.Spec.InitContainers, "no topics without Kafka")

	o, err = decode(documents(t, laid(t, "migration: {enabled: false}")))
	require.NoError(t, err)
	require.Nil(t, setting(t, o.configMaps[0].Data["millrace.yaml"], "migrate"), "workers migrate by themselves")
}

func TestAlertsAndDashboardsAreThoseOfTheRepository(t *testing.T) {
	t.Parallel()
	o, err := decode(documents(t, exampleValues(t, "examples/production.yaml")))
	require.NoError(t, err)
	alerts, err := os.ReadFile("../../configs/prometheus/alerts.yaml")
	require.NoError(t, err)
	var want struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(alerts, &want))
	require.Len(t, o.rules, 1)
	require.Len(t, o.rules[0].Spec.Groups, len(want.Groups))
	alertsSeen := 0
	for i, group := range o.rules[0].Spec.Groups {
		require.Equal(t, want.Groups[i].Name, group.Name)
		require.Len(t, group.Rules, len(want.Groups[i].Rules))
		for j, rule := range group.Rules {
			w := want.Groups[i].Rules[j]
			require.Equal(t, w.Alert, rule.Alert)
			require.Equal(t, w.Expr, rule.Expr.StrVal)
			require.Equal(t, w.For, string(*rule.For))
			require.Equal(t, w.Labels, rule.Labels)
			require.Equal(t, w.Annotations, rule.Annotations)
			alertsSeen++
		}
	}
	require.Greater(t, alertsSeen, 30)

	dashboards := map[string]string{}
	files, err := filepath.Glob("../../configs/grafana/*")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		dashboards[filepath.Base(file)] = string(text)
	}
	shown, names := map[string]string{}, map[string]bool{}
	for _, m := range o.configMaps {
		require.False(t, names[m.Name], "two ConfigMaps have the name %s", m.Name)
		names[m.Name] = true
		if m.Labels["grafana_dashboard"] == "1" {
			require.Len(t, m.Data, 1, "%s: the limit of 1 MiB is that of a ConfigMap", m.Name)
			maps.Copy(shown, m.Data)
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(dashboards)), slices.Sorted(maps.Keys(shown)))
	for name, text := range dashboards {
		require.Equal(t, text, shown[name], name)
		require.Less(t, len(text), 1<<20, "%s is too large for a ConfigMap", name)
	}
}

// The folder in the repository serves those who want neither alerts nor dashboards.
func TestTheFolderSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	c, err := loader.Load("millrace")
	require.NoError(t, err)
	_, err = renderChart(c, laid(t, "{}"))
	require.NoError(t, err)
	for _, text := range []string{"prometheusRule", "dashboards"} {
		_, err = renderChart(c, laid(t, "monitoring: {"+text+": {enabled: true}}"))
		require.ErrorContains(t, err, "monitoring."+text+".enabled: the chart has no files/")
		require.ErrorContains(t, err, "`make chart` writes a chart with it")
	}
}

func TestTheArchiveIsTheFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := pack("millrace", "v1.2.3-rc.1", filepath.Join(dir, "a"))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "a", "millrace-1.2.3-rc.1.tgz"), first)
	again, err := pack("millrace", "v1.2.3-rc.1", filepath.Join(dir, "b"))
	require.NoError(t, err)
	a, err := os.ReadFile(first)
	require.NoError(t, err)
	b, err := os.ReadFile(again)
	require.NoError(t, err)
	require.Equal(t, a, b, "the same files, the same archive")

	archive, err := loader.Load(first)
	require.NoError(t, err)
	require.Equal(t, "1.2.3-rc.1", archive.Metadata.Version)
	require.Equal(t, "v1.2.3-rc.1", archive.Metadata.AppVersion)
	folder, err := loader.Load(filepath.Join(dir, "a", "millrace"))
	require.NoError(t, err)
	want, err := renderChart(folder, exampleValues(t, "examples/everything.yaml"))
	require.NoError(t, err)
	got, err := renderChart(archive, exampleValues(t, "examples/everything.yaml"))
	require.NoError(t, err)
	require.Equal(t, want, got)

	_, err = pack("millrace", "v2.0.0", filepath.Join(dir, "a"))
	require.NoError(t, err, "a folder of an earlier chart is replaced")
	mine := filepath.Join(dir, "c", "millrace", "mine")
	require.NoError(t, os.MkdirAll(filepath.Dir(mine), 0o755))
	require.NoError(t, os.WriteFile(mine, nil, 0o600))
	_, err = pack("millrace", "v2.0.0", filepath.Join(dir, "c"))
	require.ErrorContains(t, err, "holds something other than a chart")
	require.FileExists(t, mine)
	_, err = pack("millrace", "new", filepath.Join(dir, "d"))
	require.ErrorContains(t, err, "version")
}

func TestMakeWritesTheChart(t *testing.T) {
	t.Parallel()
	dist := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "chart", "VERSION=v3.2.1", "DIST="+dist)
	cmd.Dir = "../.."
	for _, v := range os.Environ() { // variables of a make that runs the tests do not reach it
		if name, _, _ := strings.Cut(v, "="); !slices.Contains([]string{"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}, name) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, filepath.Join(dist, "chart", "millrace-3.2.1.tgz")+"\n", string(out))
	c, err := loader.Load(strings.TrimSpace(string(out)))
	require.NoError(t, err)
	require.Equal(t, "v3.2.1", c.AppVersion())
	require.FileExists(t, filepath.Join(dist, "chart", "millrace", "files", "alerts.yaml"))

	var none, usage bytes.Buffer
	require.Equal(t, 2, run([]string{"-o", dist}, &none, &usage))
	require.Contains(t, usage.String(), "usage: chart -o FOLDER -version TAG CHART | chart -o FOLDER -binary FILE CHART")
	require.Equal(t, 1, run([]string{"-o", dist, "-binary", "values_test.go", "millrace"}, &none, &usage))
	require.Contains(t, usage.String(), "values_test.go: read build information: ")
	require.Equal(t, 1, run([]string{"-o", dist, "-version", "v1.0.0", filepath.Join(dist, "absent")}, &none, &usage))
	require.Contains(t, usage.String(), "absent: Chart.yaml file is missing")
	require.Empty(t, none.String())
}
