package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
	"github.com/sightlinedev/sightline/views"
)

// View returns the proto form of a view.
func View(v *views.View) *viewv1.View {
	out := head(v)
	out.Members = members(v.Members)
	return out
}

// Delta returns the proto form of a delta.
func Delta(d views.Delta) *viewv1.Delta {
	out := &viewv1.Delta{BaseVersion: d.Base.String(), View: head(d.View), Changed: members(d.Changed)}
	for _, uid := range d.Removed {
		out.RemovedUids = append(out.RemovedUids, uid.String())
	}
	return out
}

// Removed returns the event that takes a service away.
func Removed(n views.Name, at views.Version) *viewv1.Removed {
	return &viewv1.Removed{Namespace: n.Namespace, Name: n.Service, Version: at.String()}
}

// Generations returns the proto form of a snapshot's generations.
func Generations(g views.Generations) *viewv1.Generations {
	return &viewv1.Generations{Policy: g.Policy, Routes: g.Routes}
}

// head is a view without its members.
func head(v *views.View) *viewv1.View {
	out := &viewv1.View{
		Namespace: v.Name.Namespace, Name: v.Name.Service,
		EndpointVersion: v.Endpoint.String(), ConfigVersion: v.Config.String(),
		EndpointHash: v.EndpointHash[:], ConfigHash: v.ConfigHash[:],
		Revision: v.Revision, DnsAnonymous: v.DNSAnonymous,
		Locality:   registryv1.LocalityMode_LOCALITY_MODE_SPREAD,
		Confidence: viewv1.Confidence(v.Confidence) + 1,
		Guard: &viewv1.Guard{
			Tripped: v.Guard.Tripped, Zones: v.Guard.Zones, FloorPercent: v.Guard.Floor,
			Serving: uint32(v.Guard.Serving), Members: uint32(v.Guard.Members),
		},
		PublishedTime: stamp(v.PublishedAt),
	}
	if !v.Contract.IsZero() {
		out.Contract = v.Contract.String()
	}
	if v.PreferZone {
		out.Locality = registryv1.LocalityMode_LOCALITY_MODE_PREFER_ZONE
	}
	for _, p := range v.Ports {
		out.Ports = append(out.Ports, &registryv1.Port{
			Name: p.Name, Number: uint32(p.Number), Protocol: registryv1.Protocol(p.Protocol) + 1,
		})
	}
	for _, id := range v.Identities {
		out.Identities = append(out.Identities, id.String())
	}
	for class, form := range v.Forms {
		out.Forms = append(out.Forms, &viewv1.SizeClassForm{
			SizeClass: viewv1.SizeClass(class) + 1, Form: viewv1.Form(form) + 1,
		})
	}
	return out
}

func members(in []*views.Member) []*viewv1.Member {
	out := make([]*viewv1.Member, len(in))
	for i, m := range in {
		out[i] = member(m)
	}
	return out
}

func member(m *views.Member) *viewv1.Member {
	out := &viewv1.Member{
		Uid: m.UID.String(), Label: m.Label, Identity: m.Identity.String(), Region: m.Region, Zone: m.Zone,
		Capability: m.Capability, BaseWeight: m.BaseWeight, Weight: m.Weight, State: viewv1.State(m.State) + 1,
		Draining: m.Draining, Listed: m.Listed, LastResort: m.LastResort, OwnLocality: m.OwnLocality,
		Evidence: &viewv1.Evidence{Rule: m.Evidence.Rule, Detail: m.Evidence.Detail, Since: stamp(m.Evidence.Since)},
	}
	switch e := m.Endpoint; {
	case e.Addr.IsValid():
		out.Endpoint = &viewv1.Member_Address{Address: e.Addr.String()}
	case e.Host != "":
		out.Endpoint = &viewv1.Member_Host{Host: e.Host}
	case e.URL != "":
		out.Endpoint = &viewv1.Member_Url{Url: e.URL}
	}
	for _, p := range m.Ports {
		out.Ports = append(out.Ports, &registryv1.PortNumber{Name: p.Name, Number: uint32(p.Number)})
	}
	return out
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
