package views

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

// defaultFloor is the guard's floor where a contract gives none: a missing
// field is its default, never zero.
const defaultFloor = 50

// Assembler decides what the callers of one service are given: which members
// are listed, with what weights, in which forms. It belongs to the service's
// shard and is used by one goroutine. It is pure: the same inputs give the same
// candidates, in whatever order the rows and verdicts of one application come.
type Assembler struct {
	name     Name
	service  *registry.Service
	contract registry.Contract
	revision uint64
	rows     map[UID]*instance
	order    []*instance // every row, by uid
	base     Version     // published, as the owner said last

	guard       guard
	forms       [SizeClasses]Form
	formsChosen bool
	folded      time.Time // when localities were last folded back
	hadMembers  bool

	restored   []*instance       // known from the last published view alone, when it was made
	remembered map[UID]time.Time // own localities of a checkpoint whose rows are still to come
	raised     map[UID]uint32    // raised ramps of a checkpoint whose rows are still to come
	emptiedBy  registry.Removal  // why members were removed since somebody was listed last
	serving    bool              // somebody served when last assembled
	standingIn bool              // unadmitted instances stood in when last assembled
	shown      []*instance       // members of the view being assembled, by uid
	last       Candidate
}

// instance is what the Assembler holds of one row.
type instance struct {
	uid     UID
	row     *registry.Instance
	profile registry.Profile
	verdict health.Verdict
	judged  bool // the verdict is one
	lost    bool // removed for a reason that may not empty a service
	last    bool // known from the last published view alone: its stored row does not decode
	held    bool // listed all the same, and reported

	draft     Member  // of the view being assembled
	member    *Member // of the last view
	digest    [32]byte
	own       bool
	fullSince time.Time
	raised    uint32 // thousandths of its full weight that its ramp was raised to
}

// role is the part that an instance plays in the service's set.
type role uint8

const (
	unadmitted role = iota // not a member (yet)
	counted                // a member, in the guard's M
	leaving                // draining: listed only while nobody else serves
	overridden             // out by an operator's word
	removed                // its row is gone
)

func (i *instance) role() role {
	switch {
	case i.lost:
		return removed
	case !i.judged || !i.verdict.Member:
		return unadmitted
	case i.verdict.Overridden:
		return overridden
	case i.verdict.Draining || i.row.Draining:
		return leaving
	}
	return counted
}

// NewAssembler returns the Assembler of a service, with what a checkpoint
// remembers of it; the zero Memory is a new service.
func NewAssembler(name Name, m Memory) *Assembler {
	a := &Assembler{
		name:       name,
		rows:       map[UID]*instance{},
		guard:      guard{trips: map[string]*Trip{}, lifted: map[UID]bool{}},
		hadMembers: m.HadMembers,
		remembered: map[UID]time.Time{},
		raised:     map[UID]uint32{},
	}
	for _, t := range m.Trips {
		a.guard.trips[t.Zone] = &t
	}
	for _, uid := range m.Lifted {
		a.guard.lifted[uid] = true
	}
	if len(m.Forms) == int(SizeClasses) {
		a.forms, a.formsChosen = [SizeClasses]Form(m.Forms), true
	}
	for _, o := range m.Own {
		a.remembered[o.UID] = o.FullSince
	}
	for _, r := range m.Raised {
		a.raised[r.UID] = min(r.To, rampFull)
	}
	a.last = Candidate{Name: name}
	return a
}

// Memory returns what the next checkpoint should hold.
func (a *Assembler) Memory() Memory {
	m := Memory{HadMembers: a.hadMembers, Lifted: a.Lifted()}
	for _, key := range slices.Sorted(maps.Keys(a.guard.trips)) {
		m.Trips = append(m.Trips, *a.guard.trips[key])
	}
	if a.formsChosen {
		m.Forms = slices.Clone(a.forms[:])
	}
	for _, i := range a.order {
		if i.own {
			m.Own = append(m.Own, OwnLocality{i.uid, i.fullSince})
		}
		if i.raised > 0 {
			m.Raised = append(m.Raised, RaisedRamp{i.uid, i.raised})
		}
	}
	return m
}

// Lifted are the members whose quarantine the guard has lifted, by uid.
func (a *Assembler) Lifted() []UID {
	if len(a.guard.lifted) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(a.guard.lifted))
}

// Published tells the Assembler which version of the service is published now
// (Result.Held); the next candidates name it as their base.
func (a *Assembler) Published(v Version) { a.base, a.last.Base = v, v }

// Candidate returns the newest candidate again, without its incidents: what
// the owner offers when a deferral ends.
func (a *Assembler) Candidate() Candidate {
	c := a.last
	c.Incidents = nil
	return c
}

// Apply takes in what happened and returns the view that the service should
// have now, and when to be called again though nothing happens (zero: never).
func (a *Assembler) Apply(now time.Time, in Input) (c Candidate, next time.Time) {
	if in.Change != nil {
		a.absorb(in.Change)
	}
	for _, v := range in.Verdicts {
		if i := a.rows[v.UID]; i != nil {
			i.verdict, i.judged = v, true
		}
	}
	c = Candidate{Name: a.name, Base: a.base, Revision: a.revision}
	if a.service == nil {
		if a.last.View != nil && a.last.View.ListedCount > 0 {
			c.Incidents = []Incident{{Kind: Emptied, Name: a.name, Reason: removalText[registry.ServiceDeleted]}}
		}
	} else {
		c.View, next, c.Incidents = a.assemble(now)
	}
	a.last = c
	return c, next
}

// absorb takes over the rows of a registry change.
func (a *Assembler) absorb(ch *registry.Change) {
	a.revision = max(a.revision, ch.Revision)
	a.service, a.contract = ch.Service, ch.Contract
	if ch.Service == nil {
		*a = Assembler{name: a.name, revision: a.revision, base: a.base, last: a.last, rows: map[UID]*instance{},
			guard: guard{trips: map[string]*Trip{}, lifted: map[UID]bool{}}, remembered: map[UID]time.Time{}, raised: map[UID]uint32{}}
		return
	}
	if ch.DamagedRows == 0 {
		a.repaired()
	}
	for _, ic := range ch.Instances {
		i := a.rows[ic.UID]
		switch {
		case ic.Row != nil && i == nil:
			a.insert(&instance{uid: ic.UID, row: ic.Row, profile: ic.Profile})
		case ic.Row != nil:
			i.row, i.profile, i.lost, i.last = ic.Row, ic.Profile, false, false
		case i != nil && mayEmpty(ic.Removal):
			a.remove(i)
			a.emptiedBy = ic.Removal
		case i != nil:
			i.lost = true
		}
	}
}

func (a *Assembler) insert(i *instance) {
	if since, ok := a.remembered[i.uid]; ok {
		i.own, i.fullSince = true, since
		delete(a.remembered, i.uid)
	}
	i.raised = a.raised[i.uid]
	delete(a.raised, i.uid)
	a.rows[i.uid] = i
	at, _ := slices.BinarySearchFunc(a.order, i.uid, byUID)
	a.order = slices.Insert(a.order, at, i)
}

func (a *Assembler) remove(i *instance) {
	delete(a.rows, i.uid)
	if at, ok := slices.BinarySearchFunc(a.order, i.uid, byUID); ok {
		a.order = slices.Delete(a.order, at, at+1)
	}
}

func byUID(i *instance, uid UID) int { return cmp.Compare(i.uid, uid) }

// mayEmpty says which removals may leave a service without any member
// (DESIGN.md §6, Empty). A lapse may not: the last member never ages out.
func mayEmpty(r registry.Removal) bool {
	switch r {
	case registry.RemovedByList, registry.Deregistered, registry.RemovedByOperator, registry.AddressTaken,
		registry.ServiceDeleted:
		return true
	}
	return false
}

var removalText = [...]string{
	registry.NotRemoved:        "removed without a reason",
	registry.RemovedByList:     "its authority's complete list is empty",
	registry.Deregistered:      "its last member deregistered itself",
	registry.RemovedByOperator: "an operator removed its last member",
	registry.AddressTaken:      "its last address was proved by another identity",
	registry.LapsedOut:         "its last member's lease lapsed",
	registry.ServiceDeleted:    "the service was deleted",
}

func (a *Assembler) flat() bool { return a.contract.GRPC == registry.FormFlat }

func (a *Assembler) floor() uint32 {
	if a.contract.GuardPercent == 0 {
		return defaultFloor
	}
	return a.contract.GuardPercent
}

// identities returns who may serve: what the contract says, else whoever does.
// A set that is empty for now keeps what it had, so that its Cluster stays.
func (a *Assembler) identities() []identity.ID {
	ids := slices.Clone(a.contract.Identities)
	if len(ids) == 0 {
		for _, i := range a.shown {
			if id := i.row.Identity; !slices.Contains(ids, id) { // there are one or two
				ids = append(ids, id)
			}
		}
	}
	if len(ids) == 0 && a.last.View != nil {
		return a.last.View.Identities
	}
	slices.SortFunc(ids, func(x, y identity.ID) int {
		return cmp.Or(cmp.Compare(x.TrustDomain(), y.TrustDomain()), cmp.Compare(x.Path(), y.Path()))
	})
	return slices.Compact(ids)
}
