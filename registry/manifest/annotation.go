package manifest

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// The annotations that have a meaning. They say what a field of spec says, for
// writers that can set annotations and nothing else.
const (
	consumesServices = "consumes.sightline.dev/services"
	servesPort       = "serves.sightline.dev/port"
	servesWeight     = "serves.sightline.dev/weight"
	servesCapability = "serves.sightline.dev/capability"
	healthContract   = "health.sightline.dev/contract"
)

const ownDomain = "sightline.dev"

// annotations reads metadata.annotations: what has a meaning goes to its field,
// what is free stays with a Service, which alone keeps annotations.
func (d *document) annotations(n *yaml.Node, m protoreflect.Message) {
	values := d.keys(n, "metadata.annotations")
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values[key]
		text, ok := d.text(value, "metadata.annotations."+key)
		if !ok {
			continue
		}
		service, isService := m.Interface().(*registryv1.Service)
		switch {
		case isOwn(key):
			d.meaning(key, text, value, m)
		case !isService:
			d.refuse(value, UnknownKey, "annotation %q has no meaning on %s, which keeps none; remove it", key, d.aKind())
		default:
			if service.Annotations == nil {
				service.Annotations = make(map[string]string)
			}
			service.Annotations[key] = text
			d.at["annotations."+key] = value
		}
	}
	d.at["annotations"] = n
}

func isOwn(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == ownDomain || strings.HasSuffix(domain, "."+ownDomain)
}

// meaning carries one of our annotations to its field.
func (d *document) meaning(key, text string, n *yaml.Node, m protoreflect.Message) {
	switch p := m.Interface().(type) {
	case *registryv1.Service:
		switch key {
		case consumesServices:
			p.Consumes, d.at["consumes"] = listed(text), n
			return
		case healthContract:
			p.Contract, d.at["contract"] = text, n
			return
		}
	case *registryv1.Instance:
		switch key {
		case consumesServices:
			p.Consumes, d.at["consumes"] = listed(text), n
			return
		case servesCapability:
			p.Profile, d.at["profile"] = text, n
			return
		case servesPort:
			p.Ports, d.at["ports"] = d.ports(text, n), n
			return
		case servesWeight:
			w, ok := d.number(key, text, n)
			if p.Weight, d.at["weight"] = &w, n; !ok {
				p.Weight = nil
			}
			return
		}
	}
	d.refuse(n, UnknownKey, "annotation %q has no meaning on %s%s", key, d.aKind(), hint(key, d.meanings()))
}

func (d *document) meanings() []string {
	switch d.kind {
	case ServiceKind:
		return []string{consumesServices, healthContract}
	case InstanceKind:
		return []string{consumesServices, servesPort, servesWeight, servesCapability}
	}
	return nil
}

// ports reads grpc=9090,http=8080: the instance's own numbers by port name.
func (d *document) ports(text string, n *yaml.Node) []*registryv1.PortNumber {
	var out []*registryv1.PortNumber
	for _, part := range listed(text) {
		name, number, ok := strings.Cut(part, "=")
		if !ok {
			d.refuse(n, BadValue, "%s: %q does not name a port; write name=number, several with commas", servesPort, part)
			continue
		}
		if v, ok := d.number(servesPort, number, n); ok {
			out = append(out, &registryv1.PortNumber{Name: name, Number: v})
		}
	}
	return out
}

func (d *document) number(key, text string, n *yaml.Node) (uint32, bool) {
	v, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		d.refuse(n, BadValue, "%s: %q is not a whole number", key, text)
	}
	return uint32(v), err == nil
}

// listed splits at commas; spaces around them do not count.
func listed(text string) []string {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		out = append(out, strings.TrimSpace(part))
	}
	return out
}
