package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
)

// ContractFromProto reads a contract; a field that is not given stays zero,
// which registry takes as its default. Lists stay in the order given; registry
// sorts them. The error is registry.Violations.
func ContractFromProto(p *registryv1.Contract) (*registry.Contract, error) {
	var f form
	if p == nil {
		f.refuse("", RuleRequired, "the contract is missing")
		return nil, f.violations
	}
	c := &registry.Contract{
		Name:            registry.Name{Namespace: p.GetNamespace(), Service: p.GetName()},
		Lease:           f.setDuration("lease", p.GetLease()),
		Probe:           f.probe("probe", p.GetProbe()),
		ReturnHold:      f.setDuration("return_hold", p.GetReturnHold()),
		GuardPercent:    f.setNumber("guard_percent", p.GuardPercent),
		Dependencies:    f.dependencies("dependencies", p.GetDependencies()),
		Require:         f.classes("require", p.GetRequire()),
		Silence:         fromEnum[registry.SilencePolicy](&f, "silence", p.GetSilence()),
		IgnoreLRSErrors: p.GetIgnoreLrsErrors(),
		Locality:        fromEnum[registry.LocalityMode](&f, "locality", p.GetLocality()),
		GRPC:            fromEnum[registry.GRPCForm](&f, "grpc_form", p.GetGrpcForm()),
		Quarantine:      f.quarantine("quarantine", p.GetQuarantine()),
		Identities:      f.identities("identities", p.GetIdentities()),
		Source:          p.GetSource(),
		Revision:        p.GetRevision(),
	}
	c.CallersHalfLife, c.CallersOut, c.CallersIn = f.score("callers", p.GetCallers())
	c.ProbeHalfLife, c.ProbeOut, c.ProbeIn = f.score("probes", p.GetProbes())
	c.Ramp = f.duration("ramp", p.GetRamp())
	c.NoRamp = p.GetRamp() != nil && c.Ramp == 0
	if err := f.violations.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

// ContractToProto writes a contract; what is zero is left out.
func ContractToProto(c *registry.Contract) *registryv1.Contract {
	p := &registryv1.Contract{
		Namespace:       c.Name.Namespace,
		Name:            c.Name.Service,
		Lease:           toDuration(c.Lease),
		Callers:         toScore(c.CallersHalfLife, c.CallersOut, c.CallersIn),
		Probes:          toScore(c.ProbeHalfLife, c.ProbeOut, c.ProbeIn),
		Probe:           toProbe(c.Probe),
		ReturnHold:      toDuration(c.ReturnHold),
		GuardPercent:    given(c.GuardPercent),
		Ramp:            toDuration(c.Ramp),
		Dependencies:    toDependencies(c.Dependencies),
		Require:         toClasses(c.Require),
		Silence:         toEnum[registryv1.SilencePolicy](c.Silence),
		IgnoreLrsErrors: c.IgnoreLRSErrors,
		Locality:        toEnum[registryv1.LocalityMode](c.Locality),
		GrpcForm:        toEnum[registryv1.GrpcForm](c.GRPC),
		Quarantine:      toQuarantine(c.Quarantine),
		Source:          c.Source,
		Revision:        c.Revision,
	}
	if c.NoRamp {
		p.Ramp = durationpb.New(0)
	}
	for _, id := range c.Identities {
		p.Identities = append(p.Identities, id.String())
	}
	return p
}

func (f *form) score(field string, p *registryv1.Score) (halfLife time.Duration, out, in float64) {
	if p == nil {
		return 0, 0, 0
	}
	return f.setDuration(field+".half_life", p.GetHalfLife()),
		f.setFraction(field+".out", p.Out),
		f.setFraction(field+".in", p.In)
}

func toScore(halfLife time.Duration, out, in float64) *registryv1.Score {
	if halfLife == 0 && out == 0 && in == 0 {
		return nil
	}
	return &registryv1.Score{HalfLife: toDuration(halfLife), Out: given(out), In: given(in)}
}

func (f *form) probe(field string, p *registryv1.Probe) registry.Probe {
	return registry.Probe{
		Kind:     fromEnum[registry.ProbeKind](f, field+".kind", p.GetKind()),
		Port:     p.GetPort(),
		Service:  p.GetService(),
		Path:     p.GetPath(),
		Interval: f.setDuration(field+".interval", p.GetInterval()),
		Timeout:  f.setDuration(field+".timeout", p.GetTimeout()),
	}
}

func toProbe(r registry.Probe) *registryv1.Probe {
	if r == (registry.Probe{}) {
		return nil
	}
	return &registryv1.Probe{
		Kind:     toEnum[registryv1.ProbeKind](r.Kind),
		Port:     r.Port,
		Service:  r.Service,
		Path:     r.Path,
		Interval: toDuration(r.Interval),
		Timeout:  toDuration(r.Timeout),
	}
}

func (f *form) dependencies(field string, list []*registryv1.Dependency) []registry.Dependency {
	var out []registry.Dependency
	for i, d := range list {
		at := index(field, i)
		out = append(out, registry.Dependency{
			Name:      d.GetName(),
			Shared:    d.GetShared(),
			Authority: fromEnum[registry.DependencyAuthority](f, at+".authority", d.GetAuthority()),
			Weight:    f.setNumber(at+".weight_percent", d.WeightPercent),
		})
	}
	return out
}

func toDependencies(list []registry.Dependency) []*registryv1.Dependency {
	var out []*registryv1.Dependency
	for _, d := range list {
		out = append(out, &registryv1.Dependency{
			Name:          d.Name,
			Shared:        d.Shared,
			Authority:     toEnum[registryv1.DependencyAuthority](d.Authority),
			WeightPercent: given(d.Weight),
		})
	}
	return out
}

func (f *form) quarantine(field string, p *registryv1.Quarantine) registry.Quarantine {
	if p == nil {
		return registry.Quarantine{}
	}
	return registry.Quarantine{
		Changes: int(f.setNumber(field+".changes", p.Changes)),
		Window:  f.setDuration(field+".window", p.GetWindow()),
		Hold:    f.setDuration(field+".hold", p.GetHold()),
		MaxHold: f.setDuration(field+".max_hold", p.GetMaxHold()),
	}
}

func toQuarantine(q registry.Quarantine) *registryv1.Quarantine {
	if q == (registry.Quarantine{}) {
		return nil
	}
	return &registryv1.Quarantine{
		Changes: given(uint32(q.Changes)),
		Window:  toDuration(q.Window),
		Hold:    toDuration(q.Hold),
		MaxHold: toDuration(q.MaxHold),
	}
}

func (f *form) identities(field string, list []string) []identity.ID {
	var out []identity.ID
	for i, s := range list {
		if s == "" {
			f.refuse(index(field, i), RuleIdentity, "it is empty; write a SPIFFE ID")
			continue
		}
		out = append(out, f.identity(index(field, i), s))
	}
	return out
}
