package wire

import "strings"

// Path turns the field of a violation that registry found into its path in the
// message, which is what the API's and the manifests' errors name: registry's
// types are flat where the message is nested, and the reverse. A path of this
// package's own violations comes back as it is.
func Path(field string) string {
	switch field {
	case "service.namespace":
		return "namespace"
	case "service.name":
		return "service"
	case "endpoint": // none or several of the oneof
		return "address"
	case "endpoint.address", "endpoint.host", "endpoint.url":
		return strings.TrimPrefix(field, "endpoint.")
	case "callers_half_life", "callers_out", "callers_in":
		return "callers." + strings.TrimPrefix(field, "callers_")
	case "probe_half_life", "probe_out", "probe_in":
		return "probes." + strings.TrimPrefix(field, "probe_")
	case "grpc":
		return "grpc_form"
	}
	if strings.HasPrefix(field, "dependencies[") && strings.HasSuffix(field, "].weight") {
		return field + "_percent"
	}
	return field
}
