{{- define "gpuplane.operatorSecret" -}}
{{- if eq .Values.operator.webhooks.certificate "existing" -}}
{{ required "operator.webhooks.existingSecret: name the Secret of the certificate" .Values.operator.webhooks.existingSecret }}
{{- else -}}
{{ include "gpuplane.fullname" . }}-operator-webhooks
{{- end -}}
{{- end -}}
