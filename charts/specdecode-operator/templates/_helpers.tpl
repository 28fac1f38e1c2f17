{{/* Name of the chart, for labels. */}}
{{- define "specdecode.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of the chart's objects. */}}
{{- define "specdecode.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := include "specdecode.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels that select the operator's Pods. */}}
{{- define "specdecode.selectorLabels" -}}
app.kubernetes.io/name: {{ include "specdecode.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "specdecode.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "specdecode.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: specdecode-operator
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Head of an object: `include "specdecode.metadata" (dict "root" $ "suffix" "-x" "labels" {} "annotations" {})`.
With "namespace", even an empty one (of a cluster's object), instead of the release's.
*/}}
{{- define "specdecode.metadata" -}}
name: {{ include "specdecode.fullname" .root }}{{ .suffix }}
{{- with ternary .namespace .root.Release.Namespace (hasKey . "namespace") }}
namespace: {{ . }}
{{- end }}
labels:
  {{- include "specdecode.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Name of the operator's ServiceAccount. */}}
{{- define "specdecode.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "specdecode.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* An image: `include "specdecode.image" (dict "root" $ "image" .Values.image)`. */}}
{{- define "specdecode.image" -}}
{{- with .image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .root.Chart.AppVersion .image.tag }}{{ end }}
{{- end }}

{{/* What the operator does in each namespace that it serves. docs/security.md says why, rule by rule. */}}
{{- define "specdecode.rules" -}}
- apiGroups: [specdecode.dev]
  resources: [specdecodedeployments]
  verbs: [get, list, watch]
- apiGroups: [specdecode.dev]
  resources: [specdecodedeployments/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, watch, create, delete]
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{/* What can only be asked of the whole cluster. */}}
{{- define "specdecode.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [get]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [specdecodedeployments.specdecode.dev]
  verbs: [get]
{{- end }}
