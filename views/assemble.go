package views

import (
	"slices"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// assembly is one view in the making.
type assembly struct {
	*Assembler
	now       time.Time
	byRole    [removed + 1][]*instance
	ruling    judgement // the guard's
	held      bool      // the guard holds members that nothing else would list
	standIn   bool      // only unadmitted instances are left, and listed
	serving   int       // members and draining ones that serve
	incidents []Incident
}

func (a *Assembler) assemble(now time.Time) (*View, time.Time, []Incident) {
	a.succeeded()
	s := assembly{Assembler: a, now: now}
	for _, i := range a.order {
		i.draft = Member{}
		r := i.role()
		s.byRole[r] = append(s.byRole[r], i)
	}
	a.hadMembers = a.hadMembers || len(s.byRole[counted])+len(s.byRole[leaving])+len(s.byRole[overridden]) > 0
	s.judge()
	s.draft()
	listed := s.neverEmpty()
	s.reportServing(listed)
	forms := a.chooseForms(len(a.shown))
	next := earlier(s.ruling.next, a.markOwn(now, forms))
	v := s.view(listed, forms)
	for n := range s.incidents {
		s.incidents[n].Name = a.name
	}
	return v, next, s.incidents
}

// judge asks the guard about M.
func (s *assembly) judge() {
	members := make([]standing, len(s.byRole[counted]))
	for n, i := range s.byRole[counted] {
		members[n] = standing{i.uid, i.row.Zone, i.verdict.State.Serving(), i.verdict.Quarantined, i.verdict.Flaps}
	}
	s.ruling = s.guard.judge(s.now, s.floor(), members)
	s.incidents = s.ruling.incidents
}

// draft writes down every member of the view, and who of them is listed.
func (s *assembly) draft() {
	s.shown = s.shown[:0]
	for _, i := range s.order {
		if r := i.role(); r == counted || r == leaving || r == overridden {
			s.show(i)
		}
	}
	for _, i := range s.byRole[counted] {
		s.list(i)
	}
	s.raiseRamps()
	s.serving = s.ruling.region.serving
	for _, i := range s.byRole[leaving] {
		i.draft.Draining = true
		if i.verdict.State.Serving() {
			i.draft.Listed = s.ruling.region.serving == 0
			s.serving++
		}
	}
}

// show starts an instance's part of the view.
func (s *assembly) show(i *instance) {
	s.shown = append(s.shown, i)
	base := max(1, i.row.Weight)
	i.draft = Member{
		UID: i.uid, Label: i.row.Label, Identity: i.row.Identity, Endpoint: i.row.Endpoint,
		Ports: s.ports(i), Region: i.row.Region, Zone: i.row.Zone, Capability: i.profile.Name,
		BaseWeight: base, Weight: max(1, min(i.verdict.Weight, base)), State: i.verdict.State,
		Evidence: Evidence{i.verdict.Rule.String(), i.verdict.Detail, i.verdict.Since},
	}
}

// list decides on a member of M: by its verdict, or by the guard where that
// has tripped (HEALTH.md §8). While the region is at or above the floor, whom
// more than one witness found out is put back at weight 1, and so is all of a
// dead zone, its serving members too: nobody outside reaches them.
func (s *assembly) list(i *instance) {
	v, d := &i.verdict, &i.draft
	if !s.ruling.protects(i.row.Zone) {
		d.Listed = v.State.Serving() && (!v.Quarantined || s.guard.lifted[i.uid])
		return
	}
	d.Listed = true
	switch {
	case (v.DeadZone || v.Confirmed && !v.State.Serving()) && !s.ruling.region.below(s.ruling.floor):
		d.Weight, d.LastResort = 1, true
	case !v.Ramping:
		d.Weight = d.BaseWeight
	}
}

// ports returns the instance's own numbers in the order of the service's ports,
// in the slice of the last view while that is the same.
func (s *assembly) ports(i *instance) []PortNumber {
	if i.member != nil && s.samePorts(i, i.member.Ports) {
		return i.member.Ports
	}
	ports := make([]PortNumber, len(s.service.Ports))
	for n := range ports {
		ports[n] = s.port(i, n)
	}
	return ports
}

func (s *assembly) samePorts(i *instance, ports []PortNumber) bool {
	if len(ports) != len(s.service.Ports) {
		return false
	}
	for n := range ports {
		if ports[n] != s.port(i, n) {
			return false
		}
	}
	return true
}

// port is the number under which an instance is dialled at the service's n-th port.
func (a *Assembler) port(i *instance, n int) PortNumber {
	p := a.service.Ports[n]
	for _, o := range i.row.Ports {
		if o.Name == p.Name {
			return o
		}
	}
	return PortNumber{Name: p.Name, Number: p.Number}
}

// neverEmpty finds somebody to list when nobody is: draining members, those
// that nobody has admitted, those that went for no legal reason. It returns the
// number listed; zero is left only for the reasons of DESIGN.md §6.
func (s *assembly) neverEmpty() (listed int) {
	for _, i := range s.shown {
		if i.draft.Listed {
			listed++
		}
	}
	switch waiting, held := s.standIns(), s.stranded(); {
	case listed > 0:
		s.forget()
	case len(s.byRole[leaving]) > 0:
		listed = s.hold(s.byRole[leaving])
	case len(s.byRole[overridden]) > 0:
		s.forget()
		s.emptied("an operator overrode its last members out")
	case len(waiting) > 0:
		listed = s.standBy(waiting)
		s.forget()
	case len(held) > 0:
		listed = s.holdStranded(held)
	default:
		s.forget()
		s.emptied(removalText[s.emptiedBy])
	}
	if listed > 0 {
		s.emptiedBy = registry.NotRemoved
	}
	s.standingIn = s.standIn
	return listed
}

func (s *assembly) wasListed() bool { return s.last.View != nil && s.last.View.ListedCount > 0 }

// emptied reports that the set is empty now and was not before.
func (s *assembly) emptied(reason string) {
	if s.wasListed() {
		s.incidents = append(s.incidents, Incident{Kind: Emptied, Reason: reason})
	}
}

// forget drops the instances that went and are needed no more.
func (s *assembly) forget() {
	for _, i := range s.byRole[removed] {
		s.remove(i)
	}
}

// hold lists members that no rule lists, because there is nobody else.
func (s *assembly) hold(members []*instance) int {
	s.held = true
	for _, i := range members {
		i.draft.Listed = true
	}
	return len(members)
}

// standIns are the instances that may take a service's place that has lost all
// its members: not admitted, but at a proved address.
func (s *assembly) standIns() (waiting []*instance) {
	if !s.hadMembers {
		return nil
	}
	for _, i := range s.byRole[unadmitted] {
		if i.row.Proof != registry.Unproved && !i.verdict.Overridden {
			waiting = append(waiting, i)
		}
	}
	return waiting
}

func (s *assembly) standBy(waiting []*instance) int {
	s.standIn = true
	for _, i := range waiting {
		s.show(i)
		i.draft.State, i.draft.Listed, i.draft.Weight = Unknown, true, i.draft.BaseWeight
	}
	if !s.standingIn {
		s.incidents = append(s.incidents, Incident{Kind: UnadmittedOnly, Reason: "only instances that were never admitted are left"})
	}
	return len(waiting)
}

// stranded are those that were listed and that no rule lists any more, though
// nothing happened that may empty a service: somebody's mistake.
func (s *assembly) stranded() (held []*instance) {
	if s.emptiedBy != registry.NotRemoved {
		return nil
	}
	for _, i := range s.order {
		if r := i.role(); (r == removed || r == unadmitted) && i.member != nil && i.member.Listed {
			held = append(held, i)
		}
	}
	return held
}

func (s *assembly) holdStranded(held []*instance) int {
	for _, i := range held {
		s.show(i)
		i.draft.State = Ineligible
		if !i.held {
			i.held = true
			s.incidents = append(s.incidents, Incident{Kind: HeldLast, UID: i.uid, Reason: "nothing else is left, and " + why(i)})
		}
	}
	return s.hold(held)
}

func why(i *instance) string {
	if i.lost {
		return "its removal is not one that may empty a service"
	}
	return "the last member may not lose its membership"
}

// reportServing tells once that a service has lost the last that served.
func (s *assembly) reportServing(listed int) {
	lost := s.Assembler.serving && s.serving == 0 && listed > 0 && !s.standIn
	s.Assembler.serving = s.serving > 0
	if lost {
		s.incidents = append(s.incidents, Incident{Kind: LastServing, Members: s.ruling.region.members, Floor: s.ruling.floor,
			Reason: "no member serves any more; the guard keeps them listed"})
	}
}

// view puts the pieces together and hashes them.
func (s *assembly) view(listed int, forms [SizeClasses]Form) *View {
	v := &View{
		Name: s.name, Revision: s.revision, Ports: s.service.Ports, DNSAnonymous: s.service.DNSAnonymous,
		Identities: s.identities(), PreferZone: s.contract.Locality == registry.PreferZone, Forms: forms,
		Contract: s.contract.Name, ListedCount: listed, Members: make([]*Member, len(s.shown)),
		Guard: Guard{Tripped: len(s.ruling.groups) > 0, Zones: s.ruling.groups, Floor: s.ruling.floor,
			Serving: s.ruling.region.serving, Members: s.ruling.region.members},
	}
	if s.held {
		v.Guard.Tripped, v.Guard.Zones = true, []string{region}
	}
	v.Confidence = s.confidence(v.Guard.Tripped)
	digests := make([][32]byte, len(s.shown))
	for n, i := range s.shown {
		v.Members[n], digests[n] = i.settle()
	}
	for _, i := range s.byRole[unadmitted] {
		if !i.draft.Listed {
			i.member = nil
		}
	}
	v.EndpointHash, v.ConfigHash = hashEndpoint(v, digests), HashConfig(v)
	return v
}

// settle turns the draft into the member, sharing the last one where nothing
// differs and its digest where only the evidence does.
func (i *instance) settle() (*Member, [32]byte) {
	if i.member != nil && sameMember(i.member, &i.draft) {
		if i.member.Evidence == i.draft.Evidence {
			return i.member, i.digest
		}
	} else {
		i.digest = digestMember(&i.draft)
	}
	m := i.draft
	i.member = &m
	return i.member, i.digest
}

// sameMember compares everything but the evidence.
func sameMember(a, b *Member) bool {
	return a.UID == b.UID && a.Label == b.Label && a.Identity == b.Identity && a.Endpoint == b.Endpoint &&
		slices.Equal(a.Ports, b.Ports) && a.Region == b.Region && a.Zone == b.Zone && a.Capability == b.Capability &&
		a.BaseWeight == b.BaseWeight && a.Weight == b.Weight && a.State == b.State && a.Draining == b.Draining &&
		a.Listed == b.Listed && a.LastResort == b.LastResort && a.OwnLocality == b.OwnLocality
}

// confidence says how much the set can be trusted.
func (s *assembly) confidence(tripped bool) Confidence {
	if tripped || s.standIn {
		return ConfidenceDegraded
	}
	var supplied registry.ClassSet
	for _, i := range s.shown {
		supplied |= i.verdict.Supplied
	}
	switch {
	case len(s.shown) > 0 && supplied == 0:
		return ConfidenceExistenceOnly
	case supplied != 0 && supplied&(supplied-1) == 0:
		return ConfidenceSingleClass
	}
	return ConfidenceFull
}
