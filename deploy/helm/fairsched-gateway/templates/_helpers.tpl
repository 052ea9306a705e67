{{- define "gateway.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gateway.name" -}}
{{ ternary .Release.Name (printf "%s-fairsched" .Release.Name) (contains "fairsched" .Release.Name) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "gateway.port" -}}
{{ .Values.config.listen | splitList ":" | last }}
{{- end }}
