package registry

import (
	"cmp"
	"net/netip"
	"slices"
)

// labelKey is a label's scope.
type labelKey struct {
	service Name
	label   string
}

// claim is one place that a proved instance is reached at; no two live
// instances hold the same one. An IP claim spans services (a new tenant at an
// old address); host names and URLs are third parties', which several services
// may name, so those claims are per service.
type claim struct {
	addr    netip.Addr
	port    uint16
	udp     bool
	service Name
	place   string
}

// loss remembers what the label's list entry named when another instance
// proved its address, so that the unchanged entry does not take it back. It is
// forgotten when the taker goes.
type loss struct {
	was   *Instance
	taker UID
}

// state is the rows and what is derived from them, alone or over another
// state. Its setters keep the derived tables right; they check nothing.
type state struct {
	services  *table[Name, *Service]
	instances *table[UID, *Instance]
	contracts *table[Name, *Contract]
	profiles  *table[Name, *Profile]
	damaged   *table[RowKey, string]

	labels        *table[labelKey, UID]
	claims        *table[claim, UID]
	lost          *table[labelKey, loss]
	sizes         *table[Name, int]
	lostTo        *multi[UID, labelKey] // taker → labels
	members       *multi[Name, UID]
	damagedOf     *multi[Name, RowKey]
	contractUsers *multi[Name, Name] // contract → services
	profileUsers  *multi[Name, Name] // profile → services, counted once per row that names it
	owned         *multi[string, RowKey]
}

func newState(under *state) *state {
	if under == nil {
		under = &state{}
	}
	return &state{
		services: newTable(under.services), instances: newTable(under.instances),
		contracts: newTable(under.contracts), profiles: newTable(under.profiles),
		damaged: newTable(under.damaged), labels: newTable(under.labels),
		claims: newTable(under.claims), lost: newTable(under.lost), sizes: newTable(under.sizes),
		lostTo: newMulti(under.lostTo), members: newMulti(under.members), damagedOf: newMulti(under.damagedOf),
		contractUsers: newMulti(under.contractUsers), profileUsers: newMulti(under.profileUsers),
		owned: newMulti(under.owned),
	}
}

// fold moves everything written here into the state that this one lies over.
func (s *state) fold() {
	s.services.fold()
	s.instances.fold()
	s.contracts.fold()
	s.profiles.fold()
	s.damaged.fold()
	s.labels.fold()
	s.claims.fold()
	s.lost.fold()
	s.sizes.fold()
	s.lostTo.fold()
	s.members.fold()
	s.damagedOf.fold()
	s.contractUsers.fold()
	s.profileUsers.fold()
	s.owned.fold()
}

// Service returns the service's row.
func (s *state) Service(n Name) (*Service, bool) { return s.services.get(n) }

// Instance returns the instance's row; a removed uid is not found, for ever.
func (s *state) Instance(u UID) (*Instance, bool) { return s.instances.get(u) }

// InstanceByLabel returns the service's live instance of that label.
func (s *state) InstanceByLabel(n Name, label string) (*Instance, bool) {
	u, ok := s.labels.get(labelKey{n, label})
	if !ok {
		return nil, false
	}
	return s.instances.get(u)
}

// Instances returns the service's instances, by uid.
func (s *state) Instances(n Name) []*Instance {
	uids := s.members.list(n)
	slices.Sort(uids)
	out := make([]*Instance, 0, len(uids))
	for _, u := range uids {
		if i, ok := s.instances.get(u); ok {
			out = append(out, i)
		}
	}
	return out
}

// InstanceCount is the number of the service's instances.
func (s *state) InstanceCount(n Name) int {
	c, _ := s.sizes.get(n)
	return c
}

// Contract returns the contract's row as it was given, without defaults.
func (s *state) Contract(n Name) (*Contract, bool) { return s.contracts.get(n) }

// Profile returns the capability profile's row.
func (s *state) Profile(n Name) (*Profile, bool) { return s.profiles.get(n) }

// EffectiveContract is the contract that governs the service, with defaults:
// the one it names, else the one of its own name, else the default contract.
func (s *state) EffectiveContract(svc *Service) Contract {
	n := contractOf(svc)
	if c, ok := s.contracts.get(n); ok {
		return c.WithDefaults()
	}
	return Contract{Name: n}.WithDefaults()
}

// EffectiveProfile is the profile of an instance: its own, else its service's,
// else one that supplies nothing.
func (s *state) EffectiveProfile(svc *Service, own string) Profile {
	name := own
	if name == "" && svc != nil {
		name = svc.Profile
	}
	if name == "" || svc == nil {
		return Profile{}
	}
	if p, ok := s.profiles.get(Name{svc.Name.Namespace, name}); ok {
		return *p
	}
	return Profile{Namespace: svc.Name.Namespace, Name: name}
}

// Damaged reports whether the stored row is held back because it did not
// decode, and why.
func (s *state) Damaged(k RowKey) (string, bool) { return s.damaged.get(k) }

// Owned returns every row of the source, by kind, name and uid.
func (s *state) Owned(source string) []Row {
	keys := s.owned.list(source)
	slices.SortFunc(keys, compareKeys)
	rows := make([]Row, 0, len(keys))
	for _, k := range keys {
		rows = append(rows, s.row(k))
	}
	return rows
}

func (s *state) row(k RowKey) Row {
	r := Row{Key: k}
	switch k.Kind {
	case ServiceRow:
		r.Service, _ = s.services.get(k.Name)
	case InstanceRow:
		r.Instance, _ = s.instances.get(k.UID)
	case ContractRow:
		r.Contract, _ = s.contracts.get(k.Name)
	case ProfileRow:
		r.Profile, _ = s.profiles.get(k.Name)
	}
	return r
}

func compareKeys(a, b RowKey) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), a.Name.Compare(b.Name), cmp.Compare(a.UID, b.UID))
}

// contractOf is the name of the contract that governs the service.
func contractOf(svc *Service) Name {
	if svc.Contract == "" {
		return svc.Name
	}
	return Name{svc.Name.Namespace, svc.Contract}
}

func (s *state) setService(row *Service) {
	old, had := s.services.get(row.Name)
	if had {
		s.unlinkService(old)
	}
	s.services.set(row.Name, row)
	s.owned.add(row.Source, serviceKey(row.Name), 1)
	s.contractUsers.add(contractOf(row), row.Name, 1)
	if row.Profile != "" {
		s.profileUsers.add(Name{row.Name.Namespace, row.Profile}, row.Name, 1)
	}
	s.repaired(serviceKey(row.Name))
	if had && slices.Equal(old.Ports, row.Ports) {
		return
	}
	// The service's ports are part of what its instances claim.
	members := s.Instances(row.Name)
	for _, i := range members {
		s.unclaim(old, i)
	}
	for _, i := range members {
		s.claim(row, i)
	}
}

func (s *state) unlinkService(old *Service) {
	s.owned.add(old.Source, serviceKey(old.Name), -1)
	s.contractUsers.add(contractOf(old), old.Name, -1)
	if old.Profile != "" {
		s.profileUsers.add(Name{old.Name.Namespace, old.Profile}, old.Name, -1)
	}
}

func (s *state) delService(n Name) {
	old, had := s.services.get(n)
	if !had {
		return
	}
	s.unlinkService(old)
	s.services.del(n)
	for _, k := range s.damagedOf.list(n) {
		s.repaired(k)
	}
}

func (s *state) setInstance(row *Instance) {
	svc, _ := s.services.get(row.Service)
	if old, had := s.instances.get(row.UID); had {
		s.unlinkInstance(svc, old)
	}
	s.instances.set(row.UID, row)
	s.owned.add(row.Source, instanceKey(row), 1)
	s.members.put(row.Service, row.UID, 1)
	s.sizes.set(row.Service, s.InstanceCount(row.Service)+1)
	if row.Profile != "" {
		s.profileUsers.add(Name{row.Service.Namespace, row.Profile}, row.Service, 1)
	}
	if row.Label != "" {
		s.labels.set(labelKey{row.Service, row.Label}, row.UID)
		s.found(labelKey{row.Service, row.Label})
	}
	s.claim(svc, row)
	s.repaired(instanceKey(row))
}

func (s *state) unlinkInstance(svc *Service, old *Instance) {
	s.owned.add(old.Source, instanceKey(old), -1)
	s.members.put(old.Service, old.UID, 0)
	if n := s.InstanceCount(old.Service) - 1; n > 0 {
		s.sizes.set(old.Service, n)
	} else {
		s.sizes.del(old.Service)
	}
	if old.Profile != "" {
		s.profileUsers.add(Name{old.Service.Namespace, old.Profile}, old.Service, -1)
	}
	key := labelKey{old.Service, old.Label}
	if holder, ok := s.labels.get(key); ok && holder == old.UID {
		s.labels.del(key)
	}
	s.unclaim(svc, old)
}

// delInstance removes the instance; taker is who proved its address, if that
// is why it goes.
func (s *state) delInstance(u, taker UID) {
	old, had := s.instances.get(u)
	if !had {
		return
	}
	svc, _ := s.services.get(old.Service)
	s.unlinkInstance(svc, old)
	s.instances.del(u)
	for _, k := range s.lostTo.list(u) {
		s.found(k)
	}
	if taker != 0 && old.Label != "" {
		k := labelKey{old.Service, old.Label}
		s.found(k)
		s.lost.set(k, loss{was: old, taker: taker})
		s.lostTo.put(taker, k, 1)
	}
}

// found forgets that the label's entry lost its address.
func (s *state) found(k labelKey) {
	if l, ok := s.lost.get(k); ok {
		s.lost.del(k)
		s.lostTo.put(l.taker, k, 0)
	}
}

func (s *state) setContract(row *Contract) {
	if old, had := s.contracts.get(row.Name); had {
		s.owned.add(old.Source, contractKey(old.Name), -1)
	}
	s.contracts.set(row.Name, row)
	s.owned.add(row.Source, contractKey(row.Name), 1)
	s.repaired(contractKey(row.Name))
}

func (s *state) delContract(n Name) {
	if old, had := s.contracts.get(n); had {
		s.owned.add(old.Source, contractKey(n), -1)
		s.contracts.del(n)
	}
}

func (s *state) setProfile(row *Profile) {
	n := row.key()
	if old, had := s.profiles.get(n); had {
		s.owned.add(old.Source, profileKey(n), -1)
	}
	s.profiles.set(n, row)
	s.owned.add(row.Source, profileKey(n), 1)
	s.repaired(profileKey(n))
}

func (s *state) delProfile(n Name) {
	if old, had := s.profiles.get(n); had {
		s.owned.add(old.Source, profileKey(n), -1)
		s.profiles.del(n)
	}
}

// spoil records a stored row that cannot be used.
func (s *state) spoil(d Damaged) {
	s.damaged.set(d.Key, d.Detail)
	s.damagedOf.put(d.Key.Name, d.Key, 1)
}

// repaired forgets the damage of a row that was written anew or deleted.
func (s *state) repaired(k RowKey) {
	if _, ok := s.damaged.get(k); ok {
		s.damaged.del(k)
		s.damagedOf.put(k.Name, k, 0)
	}
}

// damagedInstances counts the service's instance rows that do not decode.
func (s *state) damagedInstances(n Name) int {
	count := 0
	s.damagedOf.each(n, func(k RowKey) bool {
		if k.Kind == InstanceRow {
			count++
		}
		return true
	})
	return count
}

func (s *state) claim(svc *Service, i *Instance) {
	for _, c := range claimsOf(svc, i) {
		s.claims.set(c, i.UID)
	}
}

func (s *state) unclaim(svc *Service, i *Instance) {
	for _, c := range claimsOf(svc, i) {
		if holder, ok := s.claims.get(c); ok && holder == i.UID {
			s.claims.del(c)
		}
	}
}

// claimsOf lists where the instance is reached, one claim for each port of its
// service; none while its address is not proved.
func claimsOf(svc *Service, i *Instance) []claim {
	if svc == nil || i.Proof == Unproved {
		return nil
	}
	if i.Endpoint.URL != "" {
		return []claim{{service: i.Service, place: i.Endpoint.URL}}
	}
	out := make([]claim, 0, len(svc.Ports))
	for _, p := range svc.Ports {
		c := claim{addr: i.Endpoint.Addr, port: i.PortNumber(p), udp: p.Protocol == UDP}
		if i.Endpoint.Host != "" {
			c.service, c.place = i.Service, i.Endpoint.Host
		}
		out = append(out, c)
	}
	return out
}

// PortNumber is the instance's own number for one of its service's ports.
func (i *Instance) PortNumber(p Port) uint16 {
	for _, own := range i.Ports {
		if own.Name == p.Name {
			return own.Number
		}
	}
	return p.Number
}

func (p *Profile) key() Name { return Name{p.Namespace, p.Name} }
