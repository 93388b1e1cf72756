package views

import (
	"slices"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/registry"
)

// Restore gives a new Assembler the members of the last published view whose
// stored rows do not decode: they stay as they were until the registry says
// that the service has no damaged row any more (RELIABILITY.md, I20).
func (a *Assembler) Restore(members []*Member) {
	for _, m := range members {
		i := &instance{uid: m.UID, last: true, judged: true,
			row: &registry.Instance{
				UID: m.UID, Service: a.name, Label: m.Label, Identity: m.Identity, Endpoint: m.Endpoint, Ports: m.Ports,
				Region: m.Region, Zone: m.Zone, Weight: m.BaseWeight, Profile: m.Capability,
			},
			profile: registry.Profile{Namespace: a.name.Namespace, Name: m.Capability},
			verdict: health.Verdict{
				UID: m.UID, State: m.State, Member: true, Draining: m.Draining, Weight: m.Weight,
				Detail: "its stored row cannot be read: as it was last published", Since: m.Evidence.Since,
			},
		}
		a.insert(i)
		a.restored = append(a.restored, i)
	}
}

// repaired drops what was restored: every row of the service is readable again.
func (a *Assembler) repaired() {
	for _, i := range a.restored {
		if i.last && a.rows[i.uid] == i {
			a.remove(i)
			a.emptiedBy = registry.RemovedByOperator
		}
	}
	a.restored = nil
}

// succeeded drops what was restored and is a member again under another uid:
// whoever lost its row registers anew, under its name or at its address.
func (a *Assembler) succeeded() {
	a.restored = slices.DeleteFunc(a.restored, func(i *instance) bool {
		if !i.last || a.rows[i.uid] != i {
			return true
		}
		again := slices.ContainsFunc(a.order, func(o *instance) bool {
			return o != i && !o.last && o.judged && o.verdict.Member && a.sameHolder(i, o)
		})
		if again {
			a.remove(i)
		}
		return again
	})
}

// sameHolder reports whether two rows speak of one running instance.
func (a *Assembler) sameHolder(x, y *instance) bool {
	if x.row.Label != "" && x.row.Label == y.row.Label {
		return true
	}
	if x.row.Endpoint != y.row.Endpoint || x.row.Endpoint == (Endpoint{}) {
		return false
	}
	for n := range a.service.Ports {
		if a.port(x, n) != a.port(y, n) {
			return false
		}
	}
	return true
}
