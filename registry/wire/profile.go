package wire

import (
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
)

// ProfileFromProto reads a capability profile. The error is
// registry.Violations.
func ProfileFromProto(p *registryv1.Profile) (*registry.Profile, error) {
	var f form
	if p == nil {
		f.refuse("", RuleRequired, "the capability profile is missing")
		return nil, f.violations
	}
	out := &registry.Profile{
		Namespace: p.GetNamespace(),
		Name:      p.GetName(),
		Supplies:  f.classes("supplies", p.GetSupplies()),
		External:  p.GetExternal(),
		Source:    p.GetSource(),
		Revision:  p.GetRevision(),
	}
	if err := f.violations.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// ProfileToProto writes a capability profile.
func ProfileToProto(p *registry.Profile) *registryv1.Profile {
	return &registryv1.Profile{
		Namespace: p.Namespace,
		Name:      p.Name,
		Supplies:  toClasses(p.Supplies),
		External:  p.External,
		Source:    p.Source,
		Revision:  p.Revision,
	}
}

// classes reads a set, so a class that is not given or given twice is refused.
func (f *form) classes(field string, list []registryv1.EvidenceClass) registry.ClassSet {
	var set registry.ClassSet
	for i, c := range list {
		at := index(field, i)
		class := fromEnum[registry.EvidenceClass](f, at, c)
		switch {
		case c == registryv1.EvidenceClass_EVIDENCE_CLASS_UNSPECIFIED:
			f.refuse(at, RuleEnum, "the class is not given; write probe, self or callers")
		case set.Has(class):
			f.refuse(at, RuleUnique, "the class is there twice")
		default:
			set = set.With(class)
		}
	}
	return set
}

func toClasses(set registry.ClassSet) []registryv1.EvidenceClass {
	var out []registryv1.EvidenceClass
	for _, c := range []registry.EvidenceClass{registry.ClassProbe, registry.ClassSelf, registry.ClassCallers} {
		if set.Has(c) {
			out = append(out, toEnum[registryv1.EvidenceClass](c))
		}
	}
	return out
}
