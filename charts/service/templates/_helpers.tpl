{{- define "service.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "service.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "service.labels" -}}
{{ include "service.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "service.meta" -}}
name: {{ include "service.fullname" . }}
namespace: {{ .Release.Namespace }}
labels: {{- include "service.labels" . | nindent 2 }}
{{- with .Values.annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The resources with the GPUs in both requests and limits, as extended resources want it. */}}
{{- define "service.resources" -}}
{{- $requests := deepCopy (default dict .Values.resources.requests) -}}
{{- $limits := deepCopy (default dict .Values.resources.limits) -}}
{{- if .Values.gpu.count -}}
{{- $_ := set $requests .Values.gpu.resource (toString .Values.gpu.count) -}}
{{- $_ := set $limits .Values.gpu.resource (toString .Values.gpu.count) -}}
{{- end -}}
{{- toYaml (dict "requests" $requests "limits" $limits) -}}
{{- end -}}

{{- define "service.probe" -}}
{{- if .Values.probe.path -}}
httpGet: {path: {{ .Values.probe.path | quote }}, port: main}
{{- else -}}
tcpSocket: {port: main}
{{- end }}
periodSeconds: {{ .Values.probe.periodSeconds }}
{{- end -}}
