package cli

import "strings"

// splitService reads NS/SVC; a bare SVC takes the namespace of -n.
func (a *app) splitService(arg string) (namespace, name string, err error) {
	arg = strings.TrimPrefix(arg, "service/")
	namespace, name, ok := strings.Cut(arg, "/")
	if !ok {
		namespace, name = a.namespace, arg
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", usagef("%q does not name a service: write NAMESPACE/SERVICE, or give -n NAMESPACE", arg)
	}
	return namespace, name, nil
}

// splitInstance reads NS/SVC/INST, where INST is a label or a uid.
func (a *app) splitInstance(arg string) (namespace, service, instance string, err error) {
	parts := strings.Split(strings.TrimPrefix(arg, "instance/"), "/")
	if len(parts) == 2 && a.namespace != "" {
		parts = append([]string{a.namespace}, parts...)
	}
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", "", "", usagef("%q does not name an instance: write NAMESPACE/SERVICE/INSTANCE", arg)
	}
	return parts[0], parts[1], parts[2], nil
}

// shown is the name of an instance: its label, or its uid without one.
func shown(label, uid string) string {
	if label == "" {
		return uid
	}
	return label
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
