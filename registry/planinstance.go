package registry

import (
	"reflect"
	"slices"
)

func (b *batch) putInstance(m PutInstance) (Outcome, error) {
	row := m.Row
	normalizeInstance(&row)
	if err := CheckInstance(&row).Err(); err != nil {
		return Outcome{}, err
	}
	svc, ok := b.services.get(row.Service)
	if !ok {
		return Outcome{}, b.noService(row.Service)
	}
	if err := b.checkPlace(svc, &row).Err(); err != nil {
		return Outcome{}, err
	}
	old, err := b.incumbent(m, &row)
	if err != nil {
		return Outcome{}, err
	}
	if old != nil {
		if err := checkSeen(m.Expect, old.Revision, "instance "+old.UID.String()); err != nil {
			return Outcome{}, err
		}
	}
	if old != nil && !m.Register && samePlace(old, &row) {
		return b.updateInstance(old, row)
	}
	return b.newInstance(svc, old, row, m.Register)
}

func (b *batch) noService(n Name) error {
	object := "service " + n.String()
	if why, damaged := b.damaged.get(serviceKey(n)); damaged {
		return refuse(DamagedRow, object, "its stored row cannot be read (%s); put the service again first", why)
	}
	return refuse(NotFound, object, "there is no such service; create it before its instances")
}

// incumbent finds the live instance that the put names, if there is one, and
// refuses what may not be done to it.
func (b *batch) incumbent(m PutInstance, row *Instance) (*Instance, error) {
	if row.UID != 0 {
		return b.incumbentByUID(m, row)
	}
	object := "instance " + row.Service.String() + "/" + row.Label
	old, had := b.InstanceByLabel(row.Service, row.Label)
	switch {
	case row.Label == "" || !had:
		if m.Mode == Update {
			return nil, refuse(NotFound, object, "there is no such instance; register it first")
		}
		return nil, b.checkLost(m, row, object)
	case old.Source != row.Source:
		return nil, wrongSource(object, old.Source, row.Source)
	case m.Register && old.Identity != row.Identity:
		return nil, refuse(LabelTaken, object, "the label is that of live instance %s, which has another identity; choose another label", old.UID)
	case m.Mode == Create && !m.Register:
		return nil, refuse(AlreadyExists, object, "it exists as %s; update it instead", old.UID)
	}
	return old, nil
}

func (b *batch) incumbentByUID(m PutInstance, row *Instance) (*Instance, error) {
	object := "instance " + row.UID.String()
	old, had := b.instances.get(row.UID)
	if !had || old.Service != row.Service {
		return nil, refuse(NotFound, object, "there is no such instance of %s; register it, uids are never used again", row.Service)
	}
	if old.Source != row.Source {
		return nil, wrongSource(object, old.Source, row.Source)
	}
	var v Violations
	if m.Register || m.Mode == Create {
		v.add("uid", "assigned", "a uid is given out by the registry; leave it empty to register")
	}
	if old.Identity != row.Identity {
		v.add("identity", "immutable", "%s has %s for its lifetime; register a new instance", row.UID, old.Identity)
	}
	if !samePlace(old, row) && old.Identity == row.Identity {
		v.add("endpoint", "immutable", "%s keeps its address and ports for its lifetime; register a new instance", row.UID)
	}
	if old.Label != row.Label {
		v.add("label", "immutable", "%s is called %q for its lifetime; register a new instance", row.UID, old.DisplayName())
	}
	return old, v.Err()
}

// checkLost refuses to put back an unchanged list entry whose address another
// live instance has proved since: two lists that name one address would
// otherwise take it from each other for ever.
func (b *batch) checkLost(m PutInstance, row *Instance, object string) error {
	l, lost := b.lost.get(labelKey{row.Service, row.Label})
	if row.Label == "" || m.Register || !lost || l.was.Source != row.Source || !samePlace(l.was, row) {
		return nil
	}
	taker, alive := b.instances.get(l.taker)
	if !alive {
		return nil
	}
	return refuse(AddressHeld, object, "its address was proved by %s (%s) of %s since; remove one of the two",
		taker.DisplayName(), taker.UID, taker.Service)
}

func (b *batch) updateInstance(old *Instance, row Instance) (Outcome, error) {
	row.UID, row.Revision = old.UID, old.Revision
	if row.Proof == Unproved {
		row.Proof = old.Proof // proof is of the address, which is the same
	}
	if reflect.DeepEqual(old, &row) {
		return Outcome{UID: old.UID, Revision: old.Revision}, nil
	}
	row.Revision = b.nextRevision()
	svc, _ := b.services.get(row.Service)
	taken := b.take(svc, &row)
	b.storeInstance(&row, false)
	return Outcome{Changed: true, UID: row.UID, Taken: taken, Revision: row.Revision}, nil
}

func (b *batch) newInstance(svc *Service, old *Instance, row Instance, register bool) (Outcome, error) {
	size := b.InstanceCount(row.Service)
	if old != nil {
		size--
	}
	if size >= MaxInstances {
		return Outcome{}, refuse(ServiceFull, "service "+row.Service.String(),
			"it has %d instances, the limit is %d endpoints a service (limit instances_per_service); split the service", size, MaxInstances)
	}
	out := Outcome{Changed: true, Created: true}
	if old != nil {
		out.Replaced = old.UID
		why := RemovedByList
		if register {
			why = Deregistered
		}
		b.drop(old, why, 0)
	}
	b.counters.LastUID++
	row.UID = b.counters.LastUID
	row.Revision = b.nextRevision()
	out.UID, out.Revision = row.UID, row.Revision
	out.Taken = b.take(svc, &row)
	b.storeInstance(&row, true)
	return out, nil
}

func (b *batch) storeInstance(row *Instance, created bool) {
	b.setInstance(row)
	b.effects = append(b.effects, effect{key: instanceKey(row), created: created,
		row: Row{Key: instanceKey(row), Instance: row}})
}

// take removes every other instance that is reached where this one has been
// proved to be.
func (b *batch) take(svc *Service, row *Instance) []UID {
	var taken []UID
	for _, c := range claimsOf(svc, row) {
		holder, ok := b.claims.get(c)
		if !ok || holder == row.UID {
			continue
		}
		if other, ok := b.instances.get(holder); ok {
			b.drop(other, AddressTaken, row.UID)
			taken = append(taken, holder)
		}
	}
	slices.Sort(taken)
	return taken
}

// samePlace reports whether two rows are the same incarnation: the same
// identity at the same address and ports.
func samePlace(a, b *Instance) bool {
	return a.Identity == b.Identity && a.Endpoint == b.Endpoint && slices.Equal(a.Ports, b.Ports)
}

// checkPlace judges the instance against its service, profile and contract.
func (b *batch) checkPlace(svc *Service, row *Instance) Violations {
	var v Violations
	for i, p := range row.Ports {
		if !slices.ContainsFunc(svc.Ports, func(sp Port) bool { return sp.Name == p.Name }) {
			v.add(index("ports", i)+".name", "exists", "%s declares no port named %q; declare it there or remove the override", svc.Name, p.Name)
		}
	}
	if row.Profile != "" {
		if _, ok := b.profiles.get(Name{svc.Name.Namespace, row.Profile}); !ok {
			v.add("profile", "exists", "there is no capability profile %q in namespace %q; put it first", row.Profile, svc.Name.Namespace)
			return v
		}
	}
	profile, contract := b.EffectiveProfile(svc, row.Profile), b.EffectiveContract(svc)
	v = append(v, checkInstanceProfile(row, &profile, &contract)...)
	if len(contract.Identities) > 0 && !row.Identity.IsZero() && !slices.Contains(contract.Identities, row.Identity) {
		v.add("identity", "may-serve", "contract %s does not list %s among the identities that may serve", contract.Name, row.Identity)
	}
	return v
}

// checkInstanceProfile judges an instance against its effective profile and
// contract.
func checkInstanceProfile(row *Instance, p *Profile, c *Contract) Violations {
	var v Violations
	if row.Endpoint.Host != "" && !p.External {
		v.add("endpoint.host", "external-profile", "a host name needs a capability profile with external: true; profile: %s", profileWord(p))
	}
	if row.Identity.IsZero() && row.Endpoint.URL == "" && !p.External {
		v.add("identity", "required", "callers verify the instance by its SPIFFE ID; give one, or a profile with external: true")
	}
	if missing := c.Require &^ p.Supplies; missing != 0 {
		v.add("profile", "supplies", "contract %s requires the signal %s; profile %s does not supply it", c.Name, missing, profileWord(p))
	}
	if c.silenceIsForGood(p) {
		v.add("profile", "re-entry", "it supplies callers alone, and nobody calls what is out: what contract %s takes out for its silence could never come back; profile %s has to supply probe or self", c.Name, profileWord(p))
	}
	return v
}

// checkTogether judges a service with its contract, profile and instances.
func (b *batch) checkTogether(n Name) error {
	svc, ok := b.services.get(n)
	if !ok {
		return nil
	}
	var v Violations
	if svc.Contract != "" {
		if _, ok := b.contracts.get(contractOf(svc)); !ok {
			v.add("contract", "exists", "there is no contract %q in namespace %q; put it first", svc.Contract, n.Namespace)
		}
	}
	if svc.Profile != "" {
		if _, ok := b.profiles.get(Name{n.Namespace, svc.Profile}); !ok {
			v.add("profile", "exists", "there is no capability profile %q in namespace %q; put it first", svc.Profile, n.Namespace)
		}
	}
	if len(v) > 0 {
		return v
	}
	contract := b.EffectiveContract(svc)
	profile := b.EffectiveProfile(svc, "")
	v = checkContractFits(&contract, svc, &profile)
	if len(v) > 0 {
		return v
	}
	for _, i := range b.Instances(n) {
		p := b.EffectiveProfile(svc, i.Profile)
		if v := checkInstanceProfile(i, &p, &contract); len(v) > 0 {
			return refuse(InUse, "instance "+n.String()+"/"+i.DisplayName(), "it would become invalid: %s; change the instance first", v.Error())
		}
	}
	return nil
}
