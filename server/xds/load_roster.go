package xds

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sightlinedev/sightline/views"
)

// given is one member as the callers of a service are given it.
type given struct {
	uid    views.UID
	weight uint32 // as rendered
	tier   tier   // whose priority it is in
	own    bool   // in the grouped form: it has a locality of its own
}

// roster is who the gRPC callers of one port are given by one view, in order of
// uid. It is immutable.
type roster struct {
	view    *views.View
	members []given
}

func newRoster(v *views.View, port int, zone string) *roster {
	r := &roster{view: v}
	ps, err := place(v, port, zone)
	if err != nil {
		return r // it was not rendered either
	}
	r.members = make([]given, len(ps))
	for i := range ps {
		m := ps[i].member
		r.members[i] = given{uid: m.UID, weight: ps[i].weight, tier: ps[i].level, own: m.OwnLocality}
	}
	return r
}

// findGiven returns the place of a uid in a list by uid, or -1.
func findGiven(list []given, u views.UID) int {
	i, ok := slices.BinarySearchFunc(list, u, func(g given, u views.UID) int { return cmp.Compare(g.uid, u) })
	if !ok {
		return -1
	}
	return i
}

// hasMember reports whether the service has that instance.
func hasMember(v *views.View, u views.UID) bool {
	_, ok := slices.BinarySearchFunc(v.Members, u, func(m *views.Member, u views.UID) int { return cmp.Compare(m.UID, u) })
	return ok
}

// narrow leaves, of what a client of that size class held, what it holds by this
// roster too, at the smaller weight.
func (r *roster) narrow(held []given, size views.SizeClass) {
	for i := range held {
		g := &held[i]
		k := findGiven(r.members, g.uid)
		if k < 0 || r.members[k].tier != g.tier || !r.apart(&r.members[k], size) {
			g.weight = 0
			continue
		}
		g.weight = min(g.weight, r.members[k].weight)
	}
}

// apart reports whether the member's counts are its own, towards gRPC clients of
// that size class.
func (r *roster) apart(g *given, size views.SizeClass) bool {
	f := r.view.Forms[size]
	return f == views.PerEndpoint || f == views.Grouped && g.own
}

// formerKept is how long an address that left an instance is remembered.
const formerKept = 30 * time.Second

// former is whose an address was, and until when.
type former struct {
	uid   views.UID
	until time.Time
}

// addressBook says whose the addresses of one port are, as one view says. It is
// immutable.
type addressBook struct {
	view   *views.View
	uids   []views.UID // of the members, as in the view
	places map[netip.AddrPort]int32
	former map[netip.AddrPort]former // that left their instance a moment ago
}

// newAddressBook knows every member, listed or not: calls to one that was
// withdrawn end after it. Of two at one address the listed one counts, then the
// newer incarnation, as in the rendering.
func newAddressBook(v *views.View, port int, before *addressBook, now time.Time) *addressBook {
	b := &addressBook{view: v, uids: make([]views.UID, len(v.Members)), places: make(map[netip.AddrPort]int32, len(v.Members))}
	for i, m := range v.Members {
		b.uids[i] = m.UID
		if !m.Endpoint.Addr.IsValid() {
			continue
		}
		at := addressOf(v, m, port)
		if k, taken := b.places[at]; !taken || m.Listed || !v.Members[k].Listed {
			b.places[at] = int32(i)
		}
	}
	if before == nil {
		return b
	}
	for at, f := range before.former {
		if now.Sub(f.until) < formerKept {
			b.remember(at, f)
		}
	}
	for at, k := range before.places {
		uid := before.uids[k]
		if k, ok := b.places[at]; !ok || b.uids[k] != uid {
			b.remember(at, former{uid, now})
		}
	}
	return b
}

func (b *addressBook) remember(at netip.AddrPort, f former) {
	if b.former == nil {
		b.former = make(map[netip.AddrPort]former)
	}
	b.former[at] = f
}

// owner is whose an address was from that moment on, and its place in uids, or
// -1. No uid: nobody is known to have had it, or it changed hands since then.
func (b *addressBook) owner(at netip.AddrPort, from time.Time) (place int, uid views.UID, why LoadDrop) {
	k, now := b.places[at]
	if now && b.former == nil { // nearly always
		return int(k), b.uids[k], 0
	}
	f, before := b.former[at]
	switch {
	case now && before && f.until.After(from):
		return -1, 0, DropReused
	case now:
		return int(k), b.uids[k], 0
	case before:
		return -1, f.uid, 0
	}
	return -1, 0, DropEndpoint
}

// rosterKey names one way to render one port of a service for gRPC clients.
type rosterKey struct {
	service views.Name
	port    int
	zone    string // where the view prefers zones
}

// bookKey names one port of a service.
type bookKey struct {
	service views.Name
	port    int
}

// keptRosters is of how many views of a service the rosters are kept: clients
// hold a view for a moment after the next was published.
const keptRosters = 4

// rosters keeps what load reports are read by. It may be used from any
// goroutine; nothing is built under the lock that reports take.
type rosters struct {
	mu     sync.RWMutex
	byPort map[rosterKey][]*roster // newest first; replaced, never changed
	books  map[bookKey]*addressBook
}

func newRosters() *rosters {
	return &rosters{byPort: make(map[rosterKey][]*roster), books: make(map[bookKey]*addressBook)}
}

// roster is who callers in that zone are given of a port.
func (x *rosters) roster(v *views.View, port int, zone string) *roster {
	k := rosterKey{service: v.Name, port: port}
	if v.PreferZone {
		k.zone = zone
	}
	x.mu.RLock()
	kept := x.byPort[k]
	x.mu.RUnlock()
	for _, r := range kept {
		if r.view == v {
			return r
		}
	}
	r := newRoster(v, port, zone)
	x.mu.Lock()
	defer x.mu.Unlock()
	kept = x.byPort[k]
	list := make([]*roster, 0, keptRosters)
	for _, old := range append([]*roster{r}, kept...) {
		if len(list) < keptRosters && !slices.ContainsFunc(list, func(o *roster) bool { return o.view == old.view }) {
			list = append(list, old)
		}
	}
	slices.SortStableFunc(list, func(a, b *roster) int { return b.view.Version().Compare(a.view.Version()) })
	x.byPort[k] = list
	return r
}

// book says whose the addresses of a port are.
func (x *rosters) book(v *views.View, port int, now time.Time) *addressBook {
	k := bookKey{v.Name, port}
	x.mu.RLock()
	b := x.books[k]
	x.mu.RUnlock()
	if b != nil && (b.view == v || v.Version().Less(b.view.Version())) {
		return b
	}
	next := newAddressBook(v, port, b, now)
	x.mu.Lock()
	defer x.mu.Unlock()
	if b := x.books[k]; b != nil && v.Version().Less(b.view.Version()) {
		return b
	}
	x.books[k] = next
	return next
}

// sweep forgets the services that are gone.
func (x *rosters) sweep(keep func(views.Name) bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k := range x.byPort {
		if !keep(k.service) {
			delete(x.byPort, k)
		}
	}
	for k := range x.books {
		if !keep(k.service) {
			delete(x.books, k)
		}
	}
}
