package wire

import (
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
)

// InstanceFromProto reads an instance. Lists stay in the order given; registry
// sorts them. The error is registry.Violations.
func InstanceFromProto(p *registryv1.Instance) (*registry.Instance, error) {
	var f form
	if p == nil {
		f.refuse("", RuleRequired, "the instance is missing")
		return nil, f.violations
	}
	i := &registry.Instance{
		UID:      f.uid("uid", p.GetUid()),
		Service:  registry.Name{Namespace: p.GetNamespace(), Service: p.GetService()},
		Label:    p.GetLabel(),
		Identity: f.identity("identity", p.GetIdentity()),
		Endpoint: f.endpoint(p),
		Region:   p.GetRegion(),
		Zone:     p.GetZone(),
		Weight:   f.setNumber("weight", p.Weight),
		Profile:  p.GetProfile(),
		Lease:    f.duration("lease", p.GetLease()),
		Draining: p.GetDraining(),
		Proof:    fromEnum[registry.ProofKind](&f, "proof", p.GetProof()),
		Consumes: f.names("consumes", p.GetConsumes()),
		Metadata: cloned(p.GetMetadata()),
		Source:   p.GetSource(),
		Revision: p.GetRevision(),
	}
	for n, port := range p.GetPorts() {
		i.Ports = append(i.Ports, registry.PortNumber{
			Name:   port.GetName(),
			Number: f.port(index("ports", n)+".number", port.GetNumber()),
		})
	}
	if err := f.violations.Err(); err != nil {
		return nil, err
	}
	return i, nil
}

func (f *form) endpoint(p *registryv1.Instance) registry.Endpoint {
	switch e := p.GetEndpoint().(type) {
	case *registryv1.Instance_Address:
		return registry.Endpoint{Addr: f.address("address", e.Address)}
	case *registryv1.Instance_Host:
		if e.Host == "" {
			f.refuse("host", RuleRequired, "it is empty; write a host name")
		}
		return registry.Endpoint{Host: e.Host}
	case *registryv1.Instance_Url:
		if e.Url == "" {
			f.refuse("url", RuleRequired, "it is empty; write a URL")
		}
		return registry.Endpoint{URL: e.Url}
	}
	f.refuse("address", RuleRequired, "the instance has no address, host or url; give exactly one")
	return registry.Endpoint{}
}

// InstanceToProto writes an instance.
func InstanceToProto(i *registry.Instance) *registryv1.Instance {
	p := &registryv1.Instance{
		Namespace: i.Service.Namespace,
		Service:   i.Service.Service,
		Label:     i.Label,
		Identity:  i.Identity.String(),
		Region:    i.Region,
		Zone:      i.Zone,
		Weight:    given(i.Weight),
		Profile:   i.Profile,
		Lease:     toDuration(i.Lease),
		Draining:  i.Draining,
		Proof:     toEnum[registryv1.ProofKind](i.Proof),
		Consumes:  toNames(i.Consumes),
		Metadata:  cloned(i.Metadata),
		Source:    i.Source,
		Revision:  i.Revision,
	}
	if i.UID != 0 {
		p.Uid = i.UID.String()
	}
	switch e := i.Endpoint; {
	case e.Addr.IsValid():
		p.Endpoint = &registryv1.Instance_Address{Address: e.Addr.String()}
	case e.Host != "":
		p.Endpoint = &registryv1.Instance_Host{Host: e.Host}
	case e.URL != "":
		p.Endpoint = &registryv1.Instance_Url{Url: e.URL}
	}
	for _, port := range i.Ports {
		p.Ports = append(p.Ports, &registryv1.PortNumber{Name: port.Name, Number: uint32(port.Number)})
	}
	return p
}
