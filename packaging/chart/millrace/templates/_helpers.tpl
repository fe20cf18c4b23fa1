{{- define "millrace.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "millrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "millrace.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "millrace.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that never change, because selectors can't. */}}
{{- define "millrace.selector" -}}
app.kubernetes.io/name: {{ include "millrace.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "millrace.labels" -}}
{{ include "millrace.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "millrace.image" -}}
{{- $repository := required "image.repository: must be set, such as registry.example.com/millrace" .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Lays .over over .into, in place: maps are merged key by key, and any other value is replaced, also by
false, 0 and an empty text. An absent value changes nothing. */}}
{{- define "millrace.merge" -}}
{{- range $key, $value := .over -}}
{{- if kindIs "invalid" $value -}}
{{- else if and (kindIs "map" $value) (kindIs "map" (get $.into $key)) -}}
{{- include "millrace.merge" (dict "into" (get $.into $key) "over" $value) -}}
{{- else if kindIs "map" $value -}}
{{- $_ := set $.into $key (deepCopy $value) -}}
{{- else -}}
{{- $_ := set $.into $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The secrets that the profiles production and staging read from the environment, as files. */}}
{{- define "millrace.secrets" -}}
plugins:
  kafka:
    sasl: {password: "file:/run/secrets/millrace/kafka-password"}
  redis: {password: "file:/run/secrets/millrace/redis-password"}
  deadletter:
    store: {dsn: "file:/run/secrets/millrace/ledger-dsn"}
  promotion:
    ledger: {dsn: "file:/run/secrets/millrace/ledger-dsn"}
    money_api: {token: "file:/run/secrets/millrace/money-api-token"}
{{- end -}}

{{/* The settings of a role, as YAML: those of the chart, of all roles, of this role, and .over. */}}
{{- define "millrace.settings" -}}
{{- $values := .root.Values -}}
{{- $role := get $values.roles .role -}}
{{- $settings := dict "log" (dict "format" "json") "plugins" (dict "telemetry" (dict "listen" ":9464")) -}}
{{- if $role.profile -}}
{{- $_ := set $settings "profile" $role.profile -}}
{{- end -}}
{{- if has .role (list "gateway" "broker") -}}
{{- $_ := set $settings.plugins "web" (dict "listen" ":8080" "drain_delay" "4s") -}}
{{- end -}}
{{- if and (eq .role "worker") $values.migration.enabled -}}
{{- $_ := set $settings "migrate" false -}}
{{- end -}}
{{- if has $role.profile (list "production" "staging") -}}
{{- include "millrace.merge" (dict "into" $settings "over" (include "millrace.secrets" . | fromYaml)) -}}
{{- end -}}
{{- include "millrace.merge" (dict "into" $settings "over" $values.settings) -}}
{{- include "millrace.merge" (dict "into" $settings "over" $role.settings) -}}
{{- include "millrace.merge" (dict "into" $settings "over" (.over | default dict)) -}}
{{- $text := toYaml $settings -}}
{{- if and (contains "/run/secrets/millrace/" $text) (not $values.secrets.name) -}}
{{- fail (printf "secrets.name: must be the name of a Secret, because settings of the role %s read %s" .role (regexFind "/run/secrets/millrace/[^\"' \n]*" $text)) -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* Whole seconds of the duration .text, rounded up. */}}
{{- define "millrace.seconds" -}}
{{- if not (regexMatch "^([0-9]+([.][0-9]+)?(ms|s|m|h))+$" (toString .text)) -}}
{{- fail (printf "settings.%s: must be a duration such as 30s or 1m30s, got %v" .key .text) -}}
{{- end -}}
{{- $sum := 0.0 -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- range regexFindAll "[0-9.]+(ms|s|m|h)" .text -1 -}}
{{- $sum = addf $sum (mulf (regexFind "[0-9.]+" . | float64) (get $units (regexFind "[a-z]+" .))) -}}
{{- end -}}
{{- ceil $sum | int -}}
{{- end -}}

{{/* The port of the address .text, on which other machines must be able to reach it. */}}
{{- define "millrace.port" -}}
{{- if not (regexMatch "^(0[.]0[.]0[.]0|\\[::\\])?:[1-9][0-9]*$" (toString .text)) -}}
{{- fail (printf "settings.%s: must be a port of all addresses, such as :9464, got %v" .key .text) -}}
{{- end -}}
{{- regexFind "[0-9]+$" .text -}}
{{- end -}}

{{/* What the settings of a role mean for its objects, as YAML. */}}
{{- define "millrace.plan" -}}
{{- $role := get .root.Values.roles .role -}}
{{- $settings := include "millrace.settings" . | fromYaml -}}
{{- /* Other roles have no handlers for browsers, also if the settings of all roles name an address. */}}
{{- $web := ternary (dig "plugins" "web" "listen" "" $settings) "" (hasKey $role "service") -}}
{{- $least := ternary $role.autoscaling.minReplicas $role.replicas $role.autoscaling.enabled -}}
{{- $pod := deepCopy .root.Values.pod -}}
{{- include "millrace.merge" (dict "into" $pod "over" $role.pod) -}}
name: {{ include "millrace.fullname" .root }}-{{ .role }}
replicas: {{ $least }}
grace: {{ add 10 (include "millrace.seconds" (dict "key" "stop_timeout" "text" (get $settings "stop_timeout" | default "30s"))) }}
metricsPort: {{ include "millrace.port" (dict "key" "plugins.telemetry.listen" "text" $settings.plugins.telemetry.listen) }}
webPort: {{ if $web }}{{ include "millrace.port" (dict "key" "plugins.web.listen" "text" $web) }}{{ else }}0{{ end }}
readiness: {{ ternary "/readyz/serving" "/readyz" (has .role (list "gateway" "broker")) }}
kafka: {{ dig "plugins" "kafka" "enabled" true $settings }}
pod: {{ toJson $pod }}
{{- end -}}

{{/* What each container has: who it is, its settings and its files. */}}
{{- define "millrace.container" -}}
image: {{ include "millrace.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
env:
  # Commands that an operator runs in the container use these settings, too.
  - name: MILLRACE_CONFIG
    value: /etc/millrace/millrace.yaml
  {{- with .env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .pod.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumeMounts:
  - name: settings
    mountPath: /etc/millrace
    readOnly: true
  {{- if .root.Values.secrets.name }}
  - name: secrets
    mountPath: /run/secrets/millrace
    readOnly: true
  {{- end }}
  - name: tmp
    mountPath: /tmp
  {{- with .pod.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What each pod has besides its containers. */}}
{{- define "millrace.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- range $key := list "nodeSelector" "affinity" "tolerations" "priorityClassName" "runtimeClassName" }}
{{- with get $.pod $key }}
{{ $key }}: {{ toJson . }}
{{- end }}
{{- end }}
volumes:
  - name: settings
    configMap:
      name: {{ .settings }}
  {{- with .root.Values.secrets.name }}
  - name: secrets
    secret:
      secretName: {{ . }}
      defaultMode: 0440
  {{- end }}
  - name: tmp
    emptyDir: {}
  {{- with .pod.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
