package report

import (
	"hash/fnv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
)

// assignment is who probes what: the probers that are at work, and the targets.
// Which prober has which target is stored nowhere; registry.Probers says it of
// each, to whoever tells a prober and to whoever takes its results.
//
// Nothing runs here by itself: whoever asks looks first for probers that are
// not heard of any more.
type assignment struct {
	// Fixed after newAssignment.
	limits  limits.Reports
	member  func(registry.Name, registry.UID) bool
	events  Events
	started time.Time

	mu         sync.Mutex
	targets    targets
	atWork     map[string]*atWork
	leaving    map[string]bool  // zones that are dead: their probers' targets go to others
	probers    registry.Probers // that have targets
	set        uint64           // rises when probers is replaced
	watchers   map[*watcher]bool
	generation uint64
}

// atWork is what keeps a prober in the set: it is told its targets, and it
// reports.
type atWork struct {
	prober    registry.Prober
	heard     time.Time // the last frame of its reports, or its entry
	watches   int       // open WatchAssignment streams
	unwatched time.Time // since when there is none
}

// watcher is one WatchAssignment stream, and what it was told.
type watcher struct {
	prober registry.Prober
	told   map[registry.UID]told
	dirty  map[registry.UID]bool // to be looked at again
	set    uint64                // of probers that told follows from; 0: nothing was told
}

// told is what a prober knows of a target: the revision that it was looked at
// in, and a hash of the message. Most changes of rows are none to a prober.
type told struct{ revision, hash uint64 }

// generationBits is the room that an epoch leaves for the changes of one run.
const generationBits = 32

func newAssignment(cfg Config) *assignment {
	return &assignment{
		limits: cfg.Limits, member: cfg.Member, events: cfg.Events, started: time.Now(),
		targets: targets{anyAddress: cfg.AnyAddress, dialBacks: cfg.Limits.DialBacks,
			services: make(map[registry.Name]*probedService), byUID: make(map[registry.UID]*target),
			unproved: make(map[identity.ID][]registry.UID)},
		atWork: make(map[string]*atWork), watchers: make(map[*watcher]bool),
		set: 1, generation: cfg.Epoch << generationBits,
	}
}

// Changed takes the rows of a service that its evaluation has taken, whole at a
// start. Changes of one service come in order.
func (s *Service) Changed(c registry.Change) {
	s.assignment.touch(func(t *targets) []registry.UID { return t.apply(c) })
}

// Contract takes the contract that governs a service's instances in a zone; ""
// is every zone.
func (s *Service) Contract(n registry.Name, c registry.Contract, zone string) {
	s.assignment.touch(func(t *targets) []registry.UID { return t.contract(n, c.Probe, zone) })
}

// Probing takes what a service's evaluation wants of the probers.
func (s *Service) Probing(n registry.Name, p []health.Probing) {
	s.assignment.touch(func(t *targets) []registry.UID { return t.probing(n, p) })
}

// Transitions takes a service's transitions: a prober is told which of its
// targets are members.
func (s *Service) Transitions(n registry.Name, all []health.Transition) {
	s.assignment.touch(func(t *targets) []registry.UID { return t.transitions(n, all) })
}

// Probers are the probers that are at work.
func (s *Service) Probers() registry.Probers {
	s.assignment.mu.Lock()
	defer s.assignment.mu.Unlock()
	return s.assignment.probers
}

// touch changes the targets, and has every watcher look at whom that touches.
func (a *assignment) touch(change func(*targets) []registry.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, uid := range change(&a.targets) {
		for w := range a.watchers {
			w.dirty[uid] = true
		}
	}
}

// Stand takes what the region's observers make of themselves: the targets of
// probers in a zone that has been dead for a while go to others (HEALTH.md §6).
func (s *Service) Stand(st *health.Stance) {
	a := s.assignment
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaving = st.Leaving
}

// watch opens a watcher; its prober is at work from now on.
func (a *assignment) watch(now time.Time, p registry.Prober) *watcher {
	a.mu.Lock()
	defer a.mu.Unlock()
	w := &watcher{prober: p, told: make(map[registry.UID]told), dirty: make(map[registry.UID]bool)}
	a.watchers[w] = true
	at := a.atWork[p.Name]
	if at == nil {
		at = &atWork{}
		a.atWork[p.Name] = at
	}
	at.prober, at.heard, at.watches = p, now, at.watches+1
	return w
}

func (a *assignment) unwatch(now time.Time, w *watcher) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.watchers, w)
	at := a.atWork[w.prober.Name]
	if at.watches--; at.watches == 0 {
		at.unwatched = now
	}
}

// heard notes that a prober reports. One that does not watch its assignment is
// not at work: it would not learn what to probe.
func (a *assignment) heard(now time.Time, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.atWork[name]; at != nil {
		at.heard = now
	}
}

// refresh brings the set of probers up to date, and tells who came and went.
func (a *assignment) refresh(now time.Time) {
	a.mu.Lock()
	before := a.probers
	var live, all registry.Probers
	for name, at := range a.atWork {
		gone := at.watches == 0 && now.Sub(at.unwatched) > a.limits.ProberSilence
		switch {
		case gone:
			delete(a.atWork, name)
		case now.Sub(at.heard) > a.limits.ProberSilence:
		default:
			all = all.With(at.prober)
			if !a.leaving[at.prober.Zone] {
				live = live.With(at.prober)
			}
		}
	}
	if live.Len() == 0 {
		live = all // somebody has to look
	}
	if live.Equal(before) {
		a.mu.Unlock()
		return
	}
	a.probers = live
	a.set++
	a.mu.Unlock()
	tell := func(event func(registry.Prober, int), from, to registry.Probers) {
		for p := range from.All() {
			if was, had := to.Get(p.Name); event != nil && (!had || was != p) {
				event(p, live.Len())
			}
		}
	}
	tell(a.events.ProberWent, before, live)
	tell(a.events.ProberCame, live, before)
}

// judged is what becomes of a prober's result, by what it is about.
type judged struct {
	uid     registry.UID
	service registry.Name
	result  Result
	dialed  bool // the prober is to dial it back, and not to probe it
}

// judge says of each bound position whether the prober may speak of it now.
func (a *assignment) judge(now time.Time, name string, bound []registry.UID, at []uint32, into []judged) (health.Prober, []judged) {
	a.refresh(now)
	a.mu.Lock()
	defer a.mu.Unlock()
	p, working := a.probers.Get(name)
	for _, k := range at {
		j := judged{result: Unattributed}
		if int(k) < len(bound) {
			j.uid = bound[k]
		}
		if t := a.targets.byUID[j.uid]; t != nil {
			j.service, j.result = t.service.name, OutOfScope
			if working && t.wants != noProbe && a.probers.Assigns(j.uid, t.probers(), name) {
				if j.dialed = t.wants == dialedBack; !j.dialed {
					j.result = Accepted
				}
			}
		}
		into = append(into, j)
	}
	return health.Prober{Name: name, Zone: p.Zone}, into
}

// dialsBack reports whether the prober is to dial the instance back.
func (a *assignment) dialsBack(name string, uid registry.UID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.targets.byUID[uid]
	return t != nil && t.wants == dialedBack && a.probers.Assigns(uid, t.probers(), name)
}

// meets notes that a prober which was to dial an instance back met another
// identity there.
func (a *assignment) meets(p health.Prober, uid registry.UID, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.targets.byUID[uid]; t != nil && t.wants == dialedBack {
		t.met = met{p, at}
	}
}

// DialBack is how far the proof of an instance's address is.
type DialBack struct {
	Turn    bool // it is being dialled; else others of its identity come first
	Probers int  // that are at work
	// Prober met another identity than the one registered, at At; zero: none did.
	Prober health.Prober
	At     time.Time
}

// DialBack says how far the proof of an instance's address by dialling it back
// is; not ok where it is not to be dialled.
func (s *Service) DialBack(uid registry.UID) (d DialBack, ok bool) {
	a := s.assignment
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.targets.byUID[uid]
	if t == nil || t.wants != dialedBack {
		return d, false
	}
	return DialBack{Turn: a.targets.mayBeDialed(t), Probers: a.probers.Len(), Prober: t.met.prober, At: t.met.at}, true
}

// waiting reports whether no assignment is given out yet: after a start the
// first prober that is back would be given everything.
func (a *assignment) waiting(now time.Time) bool {
	return a.probers.Zones() < 2 && now.Sub(a.started) < a.limits.ProberGrace
}

// next is what the watcher has to be told now, in parts; nil: nothing.
func (a *assignment) next(now time.Time, w *watcher) []*healthv1.WatchAssignmentResponse {
	a.refresh(now)
	a.mu.Lock()
	defer a.mu.Unlock()
	full := w.set == 0
	switch {
	case full && a.waiting(now):
		return nil
	case w.set != a.set:
		for uid := range a.targets.byUID {
			w.dirty[uid] = true
		}
		w.set = a.set
	case len(w.dirty) == 0:
		return nil
	}
	targets, removed := a.changes(w)
	clear(w.dirty)
	if !full && len(targets) == 0 && len(removed) == 0 {
		return nil
	}
	a.generation++
	return a.parts(full, targets, removed)
}

// changes looks at the watcher's dirty targets.
func (a *assignment) changes(w *watcher) (targets []*healthv1.Target, removed []string) {
	for uid := range w.dirty {
		t := a.targets.byUID[uid]
		was, had := w.told[uid]
		var m *healthv1.Target
		if t != nil && a.probers.Assigns(uid, t.probers(), w.prober.Name) {
			if had && was.revision == t.revision && t.wants == probed {
				continue
			}
			m = a.targets.message(t, a.member)
		}
		switch {
		case m == nil && had:
			delete(w.told, uid)
			removed = append(removed, uid.String())
		case m != nil:
			now := told{t.revision, hashOf(m)}
			w.told[uid] = now
			if !had || was.hash != now.hash {
				targets = append(targets, m)
			}
		}
	}
	return targets, removed
}

// hashOf is FNV-1a over a message's bytes.
func hashOf(m *healthv1.Target) uint64 {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return 0 // a text that is no UTF-8, which no row has
	}
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum64()
}

// parts cuts a change into messages that a client can receive.
func (a *assignment) parts(full bool, targets []*healthv1.Target, removed []string) (all []*healthv1.WatchAssignmentResponse) {
	for first := true; first || len(targets) > 0 || len(removed) > 0; first = false {
		part := &healthv1.WatchAssignmentResponse{Generation: a.generation, Full: full && first}
		part.RemovedUids, removed = split(removed, a.limits.AssignmentPart)
		part.Targets, targets = split(targets, a.limits.AssignmentPart)
		all = append(all, part)
	}
	return all
}

func split[T any](list []T, n int) (part, rest []T) {
	n = min(n, len(list))
	return list[:n:n], list[n:]
}

// WatchAssignment tells a prober its targets until the stream ends.
func (s *Service) WatchAssignment(req *healthv1.WatchAssignmentRequest, conn grpc.ServerStreamingServer[healthv1.WatchAssignmentResponse]) error {
	who, leave, err := s.admit(conn.Context())
	if err != nil {
		return err
	}
	defer leave()
	name, ok := proberName(who.ID)
	if !ok {
		return notAProber(who)
	}
	if why := registry.CheckLabel(req.GetZone()); why != "" && req.GetZone() != "" {
		return status.Field(status.InvalidField, "zone", "label", why)
	}
	w := s.assignment.watch(time.Now(), registry.Prober{Name: name, Zone: req.GetZone()})
	defer func() { s.assignment.unwatch(time.Now(), w) }()
	tick := time.NewTicker(s.cfg.Limits.AssignmentEvery)
	defer tick.Stop()
	for {
		for _, part := range s.assignment.next(time.Now(), w) {
			if err := conn.Send(part); err != nil {
				return err
			}
		}
		select {
		case <-conn.Context().Done():
			return conn.Context().Err()
		case <-tick.C:
		}
	}
}
