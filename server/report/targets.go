package report

import (
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/wire"
)

// confirmEvery is the probe interval while callers are primary (HEALTH.md §3).
const confirmEvery = 10 * time.Second

// targets is what there is to probe, as far as it is known from registry rows
// and verdicts. It is guarded by its owner's lock.
type targets struct {
	anyAddress bool
	dialBacks  int
	services   map[registry.Name]*probedService
	byUID      map[registry.UID]*target
	// unproved lists the targets to be dialled back, by identity and then uid: at
	// most dialBacks of an identity are at a time, so that nobody makes probers
	// knock at many doors by registering addresses that are not his.
	unproved map[identity.ID][]registry.UID
}

// probedService is a service with targets, and how they are probed by zone; ""
// is every zone that has no terms of its own.
type probedService struct {
	name      registry.Name
	ports     []registry.Port
	terms     map[string]probeTerms
	instances map[registry.UID]*target
}

// probeTerms is a contract's probe, at full cadence and at that of confirmation.
type probeTerms struct {
	probe      registry.Probe
	full, slow *registryv1.Probe
}

func newProbeTerms(p registry.Probe) probeTerms {
	full := wire.ContractToProto(&registry.Contract{Probe: p}).GetProbe()
	slow := wire.ContractToProto(&registry.Contract{Probe: p}).GetProbe()
	if slow != nil && p.Interval < confirmEvery {
		slow.Interval = durationpb.New(confirmEvery)
	}
	return probeTerms{p, full, slow}
}

// target is one instance as its probers see it.
type target struct {
	service *probedService
	row     *registry.Instance
	profile registry.Profile
	wants   want
	// confirming and third are the evaluator's wishes (health.Probing).
	confirming, third bool
	member            membership
	met               met
	revision          uint64 // rises with each change of what a prober is told
}

// met is the last word of a prober that dialled a target back and met somebody
// else than the identity registered; zero: there is none.
type met struct {
	prober health.Prober
	at     time.Time
}

// want is what a target is there for.
type want uint8

const (
	noProbe want = iota
	probed
	dialedBack // its address is not proved: it is dialled, and not probed
)

// membership is what a transition said last; before that the views are asked.
type membership uint8

const (
	notTold membership = iota
	isMember
	notMember
)

// probers is how many probers the target has.
func (t *target) probers() int {
	switch {
	case t.wants == noProbe:
		return 0
	case t.third:
		return 3
	}
	return 2
}

// apply takes rows, and returns whom they touch.
func (ts *targets) apply(c registry.Change) (touched []registry.UID) {
	svc := ts.services[c.Name]
	if c.Service == nil && c.Removal != registry.NotRemoved {
		if svc != nil {
			for uid := range svc.instances {
				touched = ts.remove(svc, uid, touched)
			}
			delete(ts.services, c.Name)
		}
		return touched
	}
	if c.Service == nil {
		return nil // its row does not decode: its instances stay as they were
	}
	if svc == nil {
		svc = &probedService{name: c.Name, terms: make(map[string]probeTerms), instances: make(map[registry.UID]*target)}
		ts.services[c.Name] = svc
	}
	moved := !slices.Equal(svc.ports, c.Service.Ports)
	svc.ports = c.Service.Ports
	for i := range c.Instances {
		if c.Instances[i].Row == nil {
			touched = ts.remove(svc, c.Instances[i].UID, touched)
		} else {
			touched = ts.put(svc, &c.Instances[i], touched)
		}
	}
	if moved {
		touched = svc.all(touched)
	}
	return touched
}

// all touches every instance of the service.
func (s *probedService) all(touched []registry.UID) []registry.UID {
	for uid, t := range s.instances {
		t.revision++
		touched = append(touched, uid)
	}
	return touched
}

func (ts *targets) put(svc *probedService, c *registry.InstanceChange, touched []registry.UID) []registry.UID {
	t := svc.instances[c.UID]
	if t == nil {
		t = &target{service: svc}
		svc.instances[c.UID], ts.byUID[c.UID] = t, t
	}
	if t.row != nil && (t.row.Endpoint != c.Row.Endpoint || t.row.Identity != c.Row.Identity) {
		t.met = met{} // it was met elsewhere, or another was meant
	}
	t.row, t.profile = c.Row, c.Profile
	was := t.wants
	t.wants = ts.wanted(t)
	t.revision++
	touched = append(touched, c.UID)
	switch {
	case was != dialedBack && t.wants == dialedBack:
		list := ts.unproved[c.Row.Identity]
		at, _ := slices.BinarySearch(list, c.UID)
		ts.unproved[c.Row.Identity] = slices.Insert(list, at, c.UID)
	case was == dialedBack && t.wants != dialedBack:
		touched = ts.proved(c.Row.Identity, c.UID, touched)
	}
	return touched
}

func (ts *targets) remove(svc *probedService, uid registry.UID, touched []registry.UID) []registry.UID {
	t := svc.instances[uid]
	if t == nil {
		return touched
	}
	delete(svc.instances, uid)
	delete(ts.byUID, uid)
	touched = append(touched, uid)
	if t.wants == dialedBack {
		touched = ts.proved(t.row.Identity, uid, touched)
	}
	return touched
}

// proved takes an instance off its identity's list, which makes room for the
// next one.
func (ts *targets) proved(id identity.ID, uid registry.UID, touched []registry.UID) []registry.UID {
	list := ts.unproved[id]
	at, had := slices.BinarySearch(list, uid)
	if !had {
		return touched
	}
	if list = slices.Delete(list, at, at+1); len(list) == 0 {
		delete(ts.unproved, id)
		return touched
	}
	ts.unproved[id] = list
	if at < ts.dialBacks && len(list) >= ts.dialBacks {
		touched = append(touched, list[ts.dialBacks-1])
	}
	return touched
}

// contract takes how a service is probed in a zone; "" is every zone.
func (ts *targets) contract(n registry.Name, p registry.Probe, zone string) []registry.UID {
	svc := ts.services[n]
	if svc == nil {
		return nil
	}
	if now, had := svc.terms[zone]; had && now.probe == p && (zone != "" || len(svc.terms) == 1) {
		return nil
	}
	if zone == "" {
		clear(svc.terms)
	}
	svc.terms[zone] = newProbeTerms(p)
	return svc.all(nil)
}

// probing takes what an evaluator wants of the probers of a service.
func (ts *targets) probing(n registry.Name, wishes []health.Probing) (touched []registry.UID) {
	svc := ts.services[n]
	if svc == nil {
		return nil
	}
	for _, w := range wishes {
		t := svc.instances[w.UID]
		if t == nil || w.Gone || t.confirming == w.Confirming && t.third == w.Third {
			continue
		}
		t.confirming, t.third = w.Confirming, w.Third
		t.revision++
		touched = append(touched, w.UID)
	}
	return touched
}

// transitions takes who became a member, and who is one no more.
func (ts *targets) transitions(n registry.Name, all []health.Transition) (touched []registry.UID) {
	svc := ts.services[n]
	if svc == nil {
		return nil
	}
	for i := range all {
		is := notMember
		if all[i].Member {
			is = isMember
		}
		if t := svc.instances[all[i].UID]; t != nil && t.member != is {
			t.member = is
			t.revision++
			touched = append(touched, all[i].UID)
		}
	}
	return touched
}

// wanted is what a target is there for, by its rows.
func (ts *targets) wanted(t *target) want {
	e := t.row.Endpoint
	switch {
	case e.URL != "", e.Addr.IsValid() && !ts.anyAddress && !routable(e.Addr):
		return noProbe
	case t.row.Proof == registry.Unproved:
		if t.row.Identity.IsZero() || t.profile.External {
			return noProbe // there is nobody to be met: an operator asserts it
		}
		return dialedBack
	case t.profile.Supplies.Has(registry.ClassProbe):
		return probed
	}
	return noProbe
}

// routable reports whether an address is one that a prober may dial: not the
// machine's own, not link-local (which holds most clouds' metadata services),
// and not a metadata service elsewhere. The prober looks again after it has
// resolved a host name.
func routable(a netip.Addr) bool {
	a = a.Unmap()
	for _, m := range [...]string{"fd00:ec2::254", "100.100.100.200"} {
		if a == netip.MustParseAddr(m) {
			return false
		}
	}
	return !a.IsLoopback() && !a.IsUnspecified() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

// mayBeDialed reports whether a target to be dialled back has its turn.
func (ts *targets) mayBeDialed(t *target) bool {
	at, had := slices.BinarySearch(ts.unproved[t.row.Identity], t.row.UID)
	return had && at < ts.dialBacks
}

// message is the target as a prober is told of it; nil: there is no port to
// dial, or no turn yet.
func (ts *targets) message(t *target, member func(registry.Name, registry.UID) bool) *healthv1.Target {
	terms, ok := t.service.terms[t.row.Zone]
	if !ok {
		terms = t.service.terms[""]
	}
	port, ok := t.service.port(terms.probe.Port)
	if !ok || t.wants == noProbe || t.wants == dialedBack && !ts.mayBeDialed(t) {
		return nil
	}
	m := &healthv1.Target{
		Uid: t.row.UID.String(), Service: t.service.name.String(), Port: uint32(t.row.PortNumber(port)),
		Identity: t.row.Identity.String(), Zone: t.row.Zone, DialBack: t.wants == dialedBack,
		Member: t.member == isMember || t.member == notTold && member != nil && member(t.service.name, t.row.UID),
	}
	if t.row.Endpoint.Host != "" {
		m.Endpoint = &healthv1.Target_Host{Host: t.row.Endpoint.Host}
	} else {
		m.Endpoint = &healthv1.Target_Address{Address: t.row.Endpoint.Addr.String()}
	}
	switch {
	case t.wants == dialedBack:
	case t.confirming:
		m.Probe = terms.slow
	default:
		m.Probe = terms.full
	}
	return m
}

// port finds the port that is probed: the one of that name, or the default.
func (s *probedService) port(name string) (registry.Port, bool) {
	for _, p := range s.ports {
		if p.Protocol != registry.UDP && (name == "" || p.Name == name) {
			return p, true
		}
	}
	return registry.Port{}, false
}
