package registry

import (
	"reflect"
	"slices"
)

func (b *batch) putService(m PutService, index int) (Outcome, error) {
	row := m.Row
	normalizeService(&row)
	if err := CheckService(&row).Err(); err != nil {
		return Outcome{}, err
	}
	old, had := b.services.get(row.Name)
	object := "service " + row.Name.String()
	held := heldRow{object: object, there: had}
	if had {
		held.source, held.revision = old.Source, old.Revision
	}
	if err := held.mayPut(row.Source, m.Mode, m.Expect); err != nil {
		return Outcome{}, err
	}
	if had {
		row.Revision = old.Revision
		if reflect.DeepEqual(old, &row) {
			return Outcome{Revision: old.Revision}, nil
		}
		if err := b.checkPortsFree(old, &row); err != nil {
			return Outcome{}, err
		}
	}
	row.Revision = b.nextRevision()
	b.setService(&row)
	b.effects = append(b.effects, effect{key: serviceKey(row.Name), created: !had,
		row: Row{Key: serviceKey(row.Name), Service: &row}})
	b.pending = append(b.pending, crossItem{row.Name, index})
	return Outcome{Changed: true, Created: !had, Revision: row.Revision}, nil
}

// checkPortsFree refuses new port numbers of a service at which its instances
// would collide with another instance: an address has one tenant.
func (b *batch) checkPortsFree(old, row *Service) error {
	if slices.Equal(old.Ports, row.Ports) {
		return nil
	}
	fresh := make(map[claim]UID)
	for _, i := range b.Instances(row.Name) {
		for _, c := range claimsOf(row, i) {
			holder, held := b.claims.get(c)
			other, ok := b.instances.get(holder)
			if held && ok && other.Service != row.Name {
				return refuse(AddressHeld, "service "+row.Name.String(),
					"port %d of %s is already proved by %s of %s; choose another port or remove that instance",
					c.port, i.DisplayName(), other.DisplayName(), other.Service)
			}
			if twin, taken := fresh[c]; taken && twin != i.UID {
				return refuse(AddressHeld, "service "+row.Name.String(),
					"instances %s and %s would both be reached at port %d of one address; give one of them its own number",
					twin, i.UID, c.port)
			}
			fresh[c] = i.UID
		}
	}
	return nil
}

func (b *batch) deleteService(m DeleteService) (Outcome, error) {
	object := "service " + m.Name.String()
	key := serviceKey(m.Name)
	old, had := b.services.get(m.Name)
	_, damaged := b.damaged.get(key)
	held := heldRow{object: object, there: had, damaged: damaged}
	if had {
		held.source, held.revision = old.Source, old.Revision
	}
	if err := held.mayDelete(m.By, m.Expect); err != nil {
		return Outcome{}, err
	}
	for _, i := range b.Instances(m.Name) {
		b.drop(i, ServiceDeleted, 0)
	}
	for _, k := range b.damagedOf.list(m.Name) {
		if k.Kind == InstanceRow {
			b.repaired(k)
			b.effects = append(b.effects, effect{key: k, row: Row{Key: k, Delete: true}, removal: ServiceDeleted})
		}
	}
	b.delService(m.Name)
	b.repaired(key)
	rev := b.nextRevision()
	b.effects = append(b.effects, effect{key: key, row: Row{Key: key, Delete: true}, removal: ServiceDeleted})
	return Outcome{Changed: true, Revision: rev}, nil
}

// drop removes one instance row, which must be there.
func (b *batch) drop(i *Instance, why Removal, taker UID) {
	b.delInstance(i.UID, taker)
	key := instanceKey(i)
	b.effects = append(b.effects, effect{key: key, removal: why, taker: taker, row: Row{Key: key, Delete: true}})
}

func (b *batch) removeInstance(m RemoveInstance) (Outcome, error) {
	uid := m.UID
	object := "instance " + uid.String()
	if uid == 0 {
		object = "instance " + m.Service.String() + "/" + m.Label
		uid, _ = b.labels.get(labelKey{m.Service, m.Label})
	}
	old, had := b.instances.get(uid)
	if !had {
		key := RowKey{Kind: InstanceRow, Name: m.Service, UID: uid}
		if _, damaged := b.damaged.get(key); !damaged {
			return Outcome{}, refuse(NotFound, object, "there is no such instance")
		}
		b.repaired(key)
		b.effects = append(b.effects, effect{key: key, removal: m.Removal, row: Row{Key: key, Delete: true}})
		return Outcome{Changed: true, UID: uid, Revision: b.nextRevision()}, nil
	}
	if old.Source != m.By {
		return Outcome{}, wrongSource(object, old.Source, m.By)
	}
	b.drop(old, m.Removal, 0)
	return Outcome{Changed: true, UID: uid, Revision: b.nextRevision()}, nil
}

func (b *batch) putContract(m PutContract, index int) (Outcome, error) {
	row := m.Row
	normalizeContract(&row)
	if err := CheckContract(&row).Err(); err != nil {
		return Outcome{}, err
	}
	old, had := b.contracts.get(row.Name)
	object := "contract " + row.Name.String()
	held := heldRow{object: object, there: had}
	if had {
		held.source, held.revision = old.Source, old.Revision
	}
	if err := held.mayPut(row.Source, m.Mode, m.Expect); err != nil {
		return Outcome{}, err
	}
	if had {
		row.Revision = old.Revision
		if reflect.DeepEqual(old, &row) {
			return Outcome{Revision: old.Revision}, nil
		}
	}
	row.Revision = b.nextRevision()
	b.setContract(&row)
	b.effects = append(b.effects, effect{key: contractKey(row.Name), created: !had, before: old,
		row: Row{Key: contractKey(row.Name), Contract: &row}})
	for _, n := range b.contractUsers.list(row.Name) {
		b.pending = append(b.pending, crossItem{n, index})
	}
	return Outcome{Changed: true, Created: !had, Revision: row.Revision}, nil
}

func (b *batch) deleteContract(m DeleteContract) (Outcome, error) {
	object := "contract " + m.Name.String()
	old, had := b.contracts.get(m.Name)
	_, damaged := b.damaged.get(contractKey(m.Name))
	held := heldRow{object: object, there: had, damaged: damaged}
	if had {
		held.source, held.revision = old.Source, old.Revision
	}
	if err := held.mayDelete(m.By, m.Expect); err != nil {
		return Outcome{}, err
	}
	for _, n := range b.contractUsers.list(m.Name) {
		if svc, ok := b.services.get(n); ok && svc.Contract != "" {
			return Outcome{}, refuse(InUse, object, "service %s names it; change the service first", n)
		}
	}
	b.delContract(m.Name)
	b.repaired(contractKey(m.Name))
	b.effects = append(b.effects, effect{key: contractKey(m.Name), row: Row{Key: contractKey(m.Name), Delete: true}})
	return Outcome{Changed: true, Revision: b.nextRevision()}, nil
}

func (b *batch) putProfile(m PutProfile, index int) (Outcome, error) {
	row := m.Row
	if err := CheckProfile(&row).Err(); err != nil {
		return Outcome{}, err
	}
	old, had := b.profiles.get(row.key())
	object := "profile " + row.key().String()
	held := heldRow{object: object, there: had}
	if had {
		held.source, held.revision = old.Source, old.Revision
	}
	if err := held.mayPut(row.Source, m.Mode, m.Expect); err != nil {
		return Outcome{}, err
	}
	if had {
		row.Revision = old.Revision
		if *old == row {
			return Outcome{Revision: old.Revision}, nil
		}
	}
	row.Revision = b.nextRevision()
	b.setProfile(&row)
	b.effects = append(b.effects, effect{key: profileKey(row.key()), created: !had,
		row: Row{Key: profileKey(row.key()), Profile: &row}})
	for _, n := range b.profileUsers.list(row.key()) {
		b.pending = append(b.pending, crossItem{n, index})
	}
	return Outcome{Changed: true, Created: !had, Revision: row.Revision}, nil
}

func (b *batch) deleteProfile(m DeleteProfile) (Outcome, error) {
	object := "profile " + m.Name.String()
	old, had := b.profiles.get(m.Name)
	_, damaged := b.damaged.get(profileKey(m.Name))
	held := heldRow{object: object, there: had, damaged: damaged}
	if had {
		held.source, held.revision = old.Source, old.Revision
	}
	if err := held.mayDelete(m.By, 0); err != nil {
		return Outcome{}, err
	}
	if users := b.profileUsers.list(m.Name); len(users) > 0 {
		slices.SortFunc(users, Name.Compare)
		return Outcome{}, refuse(InUse, object, "service %s or one of its instances names it; change those first", users[0])
	}
	b.delProfile(m.Name)
	b.repaired(profileKey(m.Name))
	b.effects = append(b.effects, effect{key: profileKey(m.Name), row: Row{Key: profileKey(m.Name), Delete: true}})
	return Outcome{Changed: true, Revision: b.nextRevision()}, nil
}

// heldRow is what decides whether a source may change or delete a row at all.
type heldRow struct {
	object   string
	there    bool
	damaged  bool // the stored row does not decode, so that its source is not known
	source   string
	revision uint64
}

func (r heldRow) mayPut(by string, m Mode, expect uint64) error {
	switch {
	case r.there && r.source != by:
		return wrongSource(r.object, r.source, by)
	case m == Create && r.there:
		return refuse(AlreadyExists, r.object, "it exists already; update it instead")
	case m == Update && !r.there:
		return refuse(NotFound, r.object, "it does not exist; create it first")
	case r.there:
		return checkSeen(expect, r.revision, r.object)
	}
	return nil
}

func (r heldRow) mayDelete(by string, expect uint64) error {
	switch {
	case !r.there && !r.damaged:
		return refuse(NotFound, r.object, "it does not exist")
	case r.there && r.source != by:
		return wrongSource(r.object, r.source, by)
	case r.there:
		return checkSeen(expect, r.revision, r.object)
	}
	return nil
}

func wrongSource(object, owner, by string) error {
	return refuse(WrongSource, object, "the row belongs to source %q and %q may not change it; change it there", owner, by)
}

// checkSeen refuses a change that was made on another state of the row than
// the one held: somebody else wrote in between.
func checkSeen(seen, held uint64, object string) error {
	if seen != 0 && seen != held {
		return refuse(Conflict, object, "it is at revision %d and the change was made on %d; read it again and repeat the change", held, seen)
	}
	return nil
}
