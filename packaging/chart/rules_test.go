package main

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// review collects what is wrong with the objects of a release.
type review struct {
	t *testing.T
	objects
	wrong []string
}

func (r *review) that(holds bool, format string, args ...any) {
	if !holds {
		r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
	}
}

// problems returns what keeps a release from running as docs/operating.md asks for.
func problems(t *testing.T, o objects) []string {
	t.Helper()
	r := &review{t: t, objects: o}
	for _, d := range o.deployments {
		r.pod(d.Name, d.Spec.Template)
		r.deployment(d)
	}
	for _, j := range o.jobs {
		r.pod(j.Name, j.Spec.Template)
		r.job(j)
	}
	r.connections()
	slices.Sort(r.wrong)
	return slices.Compact(r.wrong)
}

// settings returns the file that a pod reads.
func (r *review) settings(pod core.PodSpec) string {
	for _, v := range pod.Volumes {
		if v.Name != "settings" || v.ConfigMap == nil {
			continue
		}
		for _, m := range r.configMaps {
			if m.Name == v.ConfigMap.Name {
				return m.Data["millrace.yaml"]
			}
		}
	}
	return ""
}

func is[T comparable](p *T, want T) bool { return p != nil && *p == want }

var (
	mountedFile = regexp.MustCompile(`(?:file:|_file: |file: )"?(/[^"\s]+)`)
	imageName   = regexp.MustCompile(`^[a-z0-9./-]+(:[\w.-]+|@sha256:[0-9a-f]{64})$`)
)

// pod checks what all pods have: no rights, settings, and every file that the settings name.
func (r *review) pod(name string, template core.PodTemplateSpec) {
	pod := template.Spec
	s := pod.SecurityContext
	r.that(s != nil && is(s.RunAsNonRoot, true) && is(s.RunAsUser, 65532) && is(s.RunAsGroup, 65532), "%s: the pod does not run as 65532", name)
	r.that(s != nil && is(s.FSGroup, 65532), "%s: the pod's group may not read the secrets", name)
	r.that(s != nil && s.SeccompProfile != nil && s.SeccompProfile.Type == core.SeccompProfileTypeRuntimeDefault, "%s: no seccomp profile", name)
	r.that(is(pod.AutomountServiceAccountToken, false), "%s: a token of the API is mounted", name)
	r.that(is(pod.EnableServiceLinks, false), "%s: variables of Services reach the process", name)
	r.that(!pod.HostNetwork && !pod.HostPID && !pod.HostIPC, "%s: shares something with the node", name)
	text := r.settings(pod)
	r.that(text != "", "%s: no settings", name)
	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		r.that(v.HostPath == nil, "%s: the volume %s is of the node", name, v.Name)
		r.that(v.Secret == nil || v.Name != "secrets" || is(v.Secret.DefaultMode, 0o440), "%s: everybody may read the secrets", name)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		at := name + "/" + c.Name
		s := c.SecurityContext
		r.that(s != nil && is(s.ReadOnlyRootFilesystem, true), "%s: the root can be written", at)
		r.that(s != nil && is(s.AllowPrivilegeEscalation, false) && s.Privileged == nil, "%s: may gain privileges", at)
		r.that(s != nil && s.Capabilities != nil && slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) && len(s.Capabilities.Add) == 0, "%s: has capabilities", at)
		r.that(imageName.MatchString(c.Image) && !strings.HasSuffix(c.Image, ":latest"), "%s: the image %s is no fixed one", at, c.Image)
		r.that(!c.Resources.Requests.Cpu().IsZero() && !c.Resources.Requests.Memory().IsZero(), "%s: requests no resources", at)
		r.that(!c.Resources.Limits.Memory().IsZero(), "%s: has no limit of memory", at)
		r.that(slices.Equal(c.Args[max(0, len(c.Args)-2):], []string{"--config", "/etc/millrace/millrace.yaml"}), "%s: does not name its settings", at)
		var mounts []string
		for _, m := range c.VolumeMounts {
			r.that(volumes[m.Name], "%s: mounts %s, which is no volume", at, m.Name)
			r.that(m.ReadOnly || m.MountPath == "/tmp", "%s: may write to %s", at, m.MountPath)
			mounts = append(mounts, m.MountPath)
		}
		r.that(slices.Contains(mounts, "/etc/millrace") && slices.Contains(mounts, "/tmp"), "%s: lacks the settings or /tmp", at)
		for _, file := range mountedFile.FindAllStringSubmatch(text, -1) {
			r.that(slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix(file[1], m+"/") }), "%s: nothing mounts %s", at, file[1])
		}
	}
}

// seconds is the time of a setting, rounded up, and def without it.
func (r *review) seconds(text string, def time.Duration, path ...string) int64 {
	if value, set := setting(r.t, text, path...).(string); set {
		d, err := time.ParseDuration(value)
		r.that(err == nil, "%v: %v", path, err)
		def = d
	}
	return int64(math.Ceil(def.Seconds()))
}

func listens(t *testing.T, text, plugin string) int32 {
	address, _ := setting(t, text, "plugins", plugin, "listen").(string)
	port, _ := strconv.Atoi(address[strings.LastIndex(address, ":")+1:])
	return int32(port)
}

// deployment checks the time to stop, the probes, and what surrounds the pods of a role.
func (r *review) deployment(d apps.Deployment) {
	name, labels, pod := d.Name, d.Spec.Template.Labels, d.Spec.Template.Spec
	text := r.settings(pod)
	role := labels["app.kubernetes.io/component"]
	r.that(selects(d.Spec.Selector.MatchLabels, labels) && d.Spec.Selector.MatchLabels["app.kubernetes.io/component"] == role, "%s: does not select its pods", name)
	r.that(labels["app.kubernetes.io/version"] != "" && d.Spec.Selector.MatchLabels["app.kubernetes.io/version"] == "", "%s: selects by version", name)
	r.that(regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString(d.Spec.Template.Annotations["checksum/settings"]), "%s: other settings start no pods", name)
	grace := r.seconds(text, 30*time.Second, "stop_timeout") + 10
	r.that(is(pod.TerminationGracePeriodSeconds, grace), "%s: the grace period is not %ds", name, grace)
	rolling := d.Spec.Strategy.RollingUpdate
	r.that(rolling != nil && rolling.MaxUnavailable != nil && rolling.MaxUnavailable.IntValue() == 0, "%s: an upgrade begins with a stop", name)

	c := pod.Containers[0]
	ports := map[string]int32{}
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	web := role == "gateway" || role == "broker"
	want := map[string]int32{"metrics": listens(r.t, text, "telemetry")}
	if web {
		want["web"] = listens(r.t, text, "web")
	}
	r.that(maps.Equal(want, ports), "%s: has the ports %v, want %v", name, ports, want)
	ready := "/readyz"
	if web {
		ready = "/readyz/serving"
	}
	r.that(probes(c.LivenessProbe, "/livez"), "%s: the liveness probe is not /livez of the port metrics", name)
	r.that(probes(c.StartupProbe, "/livez"), "%s: the startup probe is not /livez of the port metrics", name)
	r.that(probes(c.ReadinessProbe, ready), "%s: the readiness probe is not %s of the port metrics", name, ready)
	for _, s := range pod.TopologySpreadConstraints {
		r.that(s.LabelSelector != nil && selects(s.LabelSelector.MatchLabels, labels) && s.LabelSelector.MatchLabels["app.kubernetes.io/component"] == role, "%s: spreads other pods", name)
	}

	least := int32(1)
	if d.Spec.Replicas != nil {
		least = *d.Spec.Replicas
	}
	for _, s := range r.scalers {
		if s.Spec.ScaleTargetRef.Name == name {
			r.that(d.Spec.Replicas == nil, "%s: an upgrade undoes what the autoscaler did", name)
			r.that(len(s.Spec.Metrics) > 0 && s.Spec.MaxReplicas >= *s.Spec.MinReplicas, "%s: the autoscaler has no metrics or no range", name)
			least = *s.Spec.MinReplicas
		}
	}
	for _, s := range r.scaled {
		if s.Spec.ScaleTargetRef.Name == name {
			r.that(d.Spec.Replicas == nil, "%s: an upgrade undoes what the autoscaler did", name)
			r.that(len(s.Spec.Triggers) > 0 && s.Spec.MaxReplicaCount >= *s.Spec.MinReplicaCount, "%s: the autoscaler has no triggers or no range", name)
			least = *s.Spec.MinReplicaCount
		}
	}
	budgets := 0
	for _, b := range r.budgets {
		if selects(b.Spec.Selector.MatchLabels, labels) {
			budgets++
			r.that(b.Spec.MaxUnavailable != nil && b.Spec.MaxUnavailable.IntValue() == 1, "%s: the budget is not one pod", name)
		}
	}
	wantBudgets := 0
	if least > 1 {
		wantBudgets = 1
	}
	r.that(budgets == wantBudgets, "%s: has %d budgets for %d replicas", name, budgets, least)
	policies := 0
	for _, p := range r.policies {
		if selects(p.Spec.PodSelector.MatchLabels, labels) {
			policies++
			for _, rule := range p.Spec.Ingress {
				for _, port := range rule.Ports {
					r.that(ports[port.Port.StrVal] != 0, "%s: the network policy has the port %s, which the pod has not", name, port.Port)
				}
			}
			r.that(len(p.Spec.Ingress) == len(ports), "%s: the network policy has %d ports of %d", name, len(p.Spec.Ingress), len(ports))
		}
	}
	r.that(len(r.policies) == 0 || policies == 1, "%s: has %d network policies", name, policies)
}

func probes(p *core.Probe, path string) bool {
	return p != nil && p.HTTPGet != nil && p.HTTPGet.Path == path && p.HTTPGet.Port == intstr.FromString("metrics")
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// job checks that the migration runs before everything else, with settings that exist by then.
func (r *review) job(j batch.Job) {
	name := j.Name
	r.that(j.Spec.Template.Spec.RestartPolicy == core.RestartPolicyNever, "%s: is restarted", name)
	r.hook(j.ObjectMeta, "-5")
	for _, m := range r.configMaps {
		if m.Name == j.Spec.Template.Spec.Volumes[0].ConfigMap.Name {
			r.hook(m.ObjectMeta, "-10")
		}
	}
	var did []string
	for _, c := range slices.Concat(j.Spec.Template.Spec.InitContainers, j.Spec.Template.Spec.Containers) {
		args := c.Args[:len(c.Args)-2]
		if i := slices.Index(args, "--who"); i > 0 {
			r.that(slices.Equal(args[i+1:i+3], []string{"helm", "--why"}) && len(args) == i+4 && args[i+3] != "", "%s: the audit has no reason: %q", name, args)
			args = args[:i]
		}
		did = append(did, strings.Join(args, " "))
	}
	r.that(slices.Equal(did, []string{"migrate", "topics create"}) || slices.Equal(did, []string{"migrate"}), "%s: runs %q", name, did)
	for _, d := range r.deployments {
		if d.Spec.Template.Labels["app.kubernetes.io/component"] == "worker" {
			r.that(setting(r.t, r.settings(d.Spec.Template.Spec), "migrate") == false, "%s: workers migrate the tables as well", name)
		}
	}
}

func (r *review) hook(o meta.ObjectMeta, weight string) {
	r.that(o.Annotations["helm.sh/hook"] == "pre-install,pre-upgrade" && o.Annotations["helm.sh/hook-weight"] == weight &&
		o.Annotations["helm.sh/hook-delete-policy"] == "before-hook-creation", "%s: is no hook of weight %s", o.Name, weight)
}

// connections checks who selects whom.
func (r *review) connections() {
	for _, s := range r.services {
		chosen := 0
		for _, d := range r.deployments {
			if !selects(s.Spec.Selector, d.Spec.Template.Labels) {
				continue
			}
			chosen++
			for _, p := range s.Spec.Ports {
				r.that(slices.ContainsFunc(d.Spec.Template.Spec.Containers[0].Ports, func(c core.ContainerPort) bool { return c.Name == p.TargetPort.StrVal }),
					"%s: %s has no port %s", s.Name, d.Name, p.TargetPort.StrVal)
			}
		}
		want := 1
		if s.Spec.ClusterIP == core.ClusterIPNone {
			want = len(r.deployments)
		}
		r.that(chosen == want, "%s: selects %d roles, want %d", s.Name, chosen, want)
		for _, j := range r.jobs {
			r.that(!selects(s.Spec.Selector, j.Spec.Template.Labels), "%s: selects the Job", s.Name)
		}
	}
	for _, b := range r.budgets {
		for _, j := range r.jobs {
			r.that(!selects(b.Spec.Selector.MatchLabels, j.Spec.Template.Labels), "%s: selects the Job", b.Name)
		}
	}
	for _, m := range r.monitors {
		chosen := 0
		for _, s := range r.services {
			if selects(m.Spec.Selector.MatchLabels, s.Labels) {
				chosen++
				r.that(slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool { return p.Name == m.Spec.Endpoints[0].Port }), "%s: reads a port that %s has not", m.Name, s.Name)
			}
		}
		r.that(chosen == 1, "%s: selects %d Services", m.Name, chosen)
		relabel := m.Spec.Endpoints[0].RelabelConfigs
		r.that(len(relabel) == 1 && relabel[0].TargetLabel == "job" && is(relabel[0].Replacement, "millrace"), "%s: the job of the metrics is not millrace", m.Name)
	}
}

func TestReleasesKeepTheRules(t *testing.T) {
	t.Parallel()
	for _, file := range examples(t) {
		o, err := decode(documents(t, exampleValues(t, file)))
		require.NoError(t, err)
		require.Empty(t, problems(t, o), file)
		require.NotEmpty(t, o.deployments, file)
	}
}

func TestRulesBite(t *testing.T) {
	t.Parallel()
	docs := documents(t, exampleValues(t, "examples/everything.yaml"))
	for _, tc := range []struct{ was, is, want string }{
		{"terminationGracePeriodSeconds: 55", "terminationGracePeriodSeconds: 54", "millrace-pipeline-worker: the grace period is not 55s"},
		{"terminationGracePeriodSeconds: 130", "terminationGracePeriodSeconds: 55", "millrace-pipeline-gateway: the grace period is not 130s"},
		{"{path: /livez, port: metrics}\n            periodSeconds: 10", "{path: /readyz, port: metrics}\n            periodSeconds: 10", "millrace-pipeline-worker: the liveness probe is not /livez of the port metrics"},
		{"{path: /livez, port: metrics}\n            periodSeconds: 2", "{path: /livez, port: web}\n            periodSeconds: 2", "millrace-pipeline-router: the startup probe is not /livez of the port metrics"},
		{"/readyz/serving", "/readyz", "millrace-pipeline-broker: the readiness probe is not /readyz/serving of the port metrics"},
		{"containerPort: 8443", "containerPort: 8080", "millrace-pipeline-gateway: has the ports map[metrics:9000 web:8080], want map[metrics:9000 web:8443]"},
		{"runAsUser: 65532", "runAsUser: 0", "millrace-pipeline-migration: the pod does not run as 65532"},
		{"fsGroup: 65532", "fsGroup: 0", "millrace-pipeline-worker: the pod's group may not read the secrets"},
		{"type: RuntimeDefault", "type: Unconfined", "millrace-pipeline-worker: no seccomp profile"},
		{"defaultMode: 0440", "defaultMode: 440", "millrace-pipeline-worker: everybody may read the secrets"},
		{"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "millrace-pipeline-migration/topics: the root can be written"},
		{"drop: [ALL]", "drop: [ALL]\n              add: [NET_ADMIN]", "millrace-pipeline-worker/millrace: has capabilities"},
		{"allowPrivilegeEscalation: false", "privileged: true", "millrace-pipeline-migration/migrate: may gain privileges"},
		{"automountServiceAccountToken: false", "automountServiceAccountToken: true", "millrace-pipeline-worker: a token of the API is mounted"},
		{"enableServiceLinks: false", "enableServiceLinks: true", "millrace-pipeline-worker: variables of Services reach the process"},
		{"millrace:v0.1.0", "millrace:latest", "millrace-pipeline-worker/millrace: the image registry.example.com/millrace:latest is no fixed one"},
		{"mountPath: /etc/web", "mountPath: /etc/webs", "millrace-pipeline-gateway/millrace: nothing mounts /etc/web/tls.crt"},
		{"mountPath: /run/secrets/millrace", "mountPath: /secrets", "millrace-pipeline-migration/migrate: nothing mounts /run/secrets/millrace/ledger-dsn"},
		{"mountPath: /tmp", "mountPath: /var/tmp", "millrace-pipeline-worker/millrace: lacks the settings or /tmp"},
		{"kind: PodDisruptionBudget", "kind: Nothing", "millrace-pipeline-router: has 0 budgets for 3 replicas"},
		{"replicas: 3", "replicas: 1", "millrace-pipeline-router: has 1 budgets for 1 replicas"},
		{"minReplicaCount: 3", "minReplicaCount: 1", "millrace-pipeline-worker: has 1 budgets for 1 replicas"},
		{"spec:\n  revisionHistoryLimit", "spec:\n  replicas: 3\n  revisionHistoryLimit", "millrace-pipeline-worker: an upgrade undoes what the autoscaler did"},
		{"checksum/settings", "checksum/setting", "millrace-pipeline-worker: other settings start no pods"},
		{"helm.sh/hook-weight: \"-10\"", "helm.sh/hook-weight: \"0\"", "millrace-pipeline-migration: is no hook of weight -10"},
		{"helm.sh/hook: pre-install,pre-upgrade", "helm.sh/hook: post-install", "millrace-pipeline-migration: is no hook of weight -5"},
		{"args: [migrate,", "args: [topics,", `millrace-pipeline-migration: runs ["topics" "topics create"]`},
		{"    migrate: false", "    migrate: true", "millrace-pipeline-migration: workers migrate the tables as well"},
		{"    millrace.io/serves: metrics\n  ports", "    app.kubernetes.io/component: router\n  ports", "millrace-pipeline-metrics: selects 1 roles, want 5"},
		{"    millrace.io/serves: metrics\n  ports", "  ports", "millrace-pipeline-metrics: selects the Job"},
		{"targetPort: web", "targetPort: http", "millrace-pipeline-broker: millrace-pipeline-broker has no port http"},
		{"replacement: millrace", "replacement: events", "millrace-pipeline: the job of the metrics is not millrace"},
		{"- port: web\n          protocol", "- port: http\n          protocol", "millrace-pipeline-gateway: the network policy has the port http, which the pod has not"},
		{"maxUnavailable: 0", "maxUnavailable: 1", "millrace-pipeline-worker: an upgrade begins with a stop"},
	} {
		var broken []string
		changed := false
		for _, doc := range docs {
			after := strings.ReplaceAll(doc, tc.was, tc.is)
			changed = changed || after != doc
			if !strings.Contains(after, "kind: Nothing\n") {
				broken = append(broken, after)
			}
		}
		require.True(t, changed, tc.was)
		o, err := decode(broken)
		require.NoError(t, err, tc.was)
		require.Contains(t, problems(t, o), tc.want, "%s -> %s", tc.was, tc.is)
	}
}
