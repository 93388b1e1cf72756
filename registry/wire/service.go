package wire

import (
	"maps"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
)

// ServiceFromProto reads a service. The error is registry.Violations.
func ServiceFromProto(p *registryv1.Service) (*registry.Service, error) {
	var f form
	if p == nil {
		f.refuse("", RuleRequired, "the service is missing")
		return nil, f.violations
	}
	s := &registry.Service{
		Name:         registry.Name{Namespace: p.GetNamespace(), Service: p.GetName()},
		DNSAnonymous: p.GetExposure().GetDnsAnonymous(),
		Contract:     p.GetContract(),
		Profile:      p.GetProfile(),
		Consumes:     f.names("consumes", p.GetConsumes()),
		Annotations:  cloned(p.GetAnnotations()),
		Source:       p.GetSource(),
		Revision:     p.GetRevision(),
	}
	for i, port := range p.GetPorts() {
		at := index("ports", i)
		s.Ports = append(s.Ports, registry.Port{
			Name:     port.GetName(),
			Number:   f.port(at+".number", port.GetNumber()),
			Protocol: fromEnum[registry.Protocol](&f, at+".protocol", port.GetProtocol()),
		})
	}
	if err := f.violations.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// ServiceToProto writes a service.
func ServiceToProto(s *registry.Service) *registryv1.Service {
	p := &registryv1.Service{
		Namespace:   s.Name.Namespace,
		Name:        s.Name.Service,
		Contract:    s.Contract,
		Profile:     s.Profile,
		Consumes:    toNames(s.Consumes),
		Annotations: cloned(s.Annotations),
		Source:      s.Source,
		Revision:    s.Revision,
	}
	if s.DNSAnonymous {
		p.Exposure = &registryv1.Exposure{DnsAnonymous: true}
	}
	for _, port := range s.Ports {
		p.Ports = append(p.Ports, &registryv1.Port{
			Name:     port.Name,
			Number:   uint32(port.Number),
			Protocol: toEnum[registryv1.Protocol](port.Protocol),
		})
	}
	return p
}

// cloned copies a map; an empty one is nil, as it is on the wire.
func cloned(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return maps.Clone(m)
}
