{{/* The operator's calls on what lies in namespaces. */}}
{{- define "gpuplane.operatorRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [gpu.warp.dev]
  resources: [gpuworkloads]
  verbs: [list, watch, patch]
- apiGroups: [gpu.warp.dev]
  resources: [gpuworkloads/status]
  verbs: [patch]
# Where OwnerReferencesPermissionEnforcement is on, a Job may name its owner only with this.
- apiGroups: [gpu.warp.dev]
  resources: [gpuworkloads/finalizers]
  verbs: [update]
{{- if .Values.operator.provisioningClass }}
- apiGroups: [autoscaling.x-k8s.io]
  resources: [provisioningrequests]
  verbs: [list, watch, create]
- apiGroups: [""]
  resources: [podtemplates]
  verbs: [create]
{{- end }}
{{- end -}}
