package xds

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

// loadService adapts the generated interface.
type loadService struct {
	loadstatsv3.UnimplementedLoadReportingServiceServer
	s *Server
}

func (v loadService) StreamLoadStats(ss loadstatsv3.LoadReportingService_StreamLoadStatsServer) error {
	return v.s.loads(ss)
}

// loadStream is one LRS stream. All but end and met belongs to its handler.
type loadStream struct {
	srv    *Server
	conn   grpc.ServerStream
	end    func(error) // ends the stream from anywhere, with a status
	who    identity.Principal
	scope  scope
	key    string // of its connection
	opened time.Time
	met    atomic.Bool // a request came

	msg   loadMessage
	kind  kind
	taken []taken                   // parts of the report at hand
	named map[resourceName]struct{} // Clusters of the report at hand
	given []given
	slots []int32
	last  time.Time                // of the report before this one
	spoke map[views.Name]time.Time // when calls to a service were last reported
}

// taken is what a Cluster's part of a report says of a service.
type taken struct {
	service  views.Name
	interval time.Duration
	entries  []LoadEntry
}

const (
	// loadRate is how many reports a second one stream may send, and loadBurst
	// how many may come at once: four times what clients are asked for.
	loadRate  = 2
	loadBurst = 8
)

// loads runs one LRS stream. It has no age of its own: it ends with its
// connection or the process, since each break costs some clients an interval of
// counts (ENGINE.md §9).
func (s *Server) loads(conn grpc.ServerStream) error {
	ctx := conn.Context()
	cancel, ok := ctx.Value(endKey{}).(context.CancelCauseFunc)
	if !ok {
		return status.Errorf(status.Internal, "the gRPC server was built without xds.Tap")
	}
	defer cancel(nil)
	who, ok := s.cfg.Principal(ctx)
	if !ok {
		return status.Errorf(status.NoIdentity, "the stream carries no verified identity")
	}
	l := &loadStream{
		srv: s, conn: conn, who: who, scope: s.scopeOf(who), key: s.connection(ctx), opened: time.Now(),
		spoke: make(map[views.Name]time.Time),
		end:   func(reason error) { tell(ctx, reason); cancel(reason) },
		msg:   loadMessage{wantNode: true, limit: s.cfg.Limits.LoadReportBytes, large: s.largeLoads},
	}
	if err := s.enterLoads(l); err != nil {
		return err
	}
	defer s.exitLoads(l)
	select {
	case <-s.loaded: // until then no service is known to have anybody in it
	case <-ctx.Done():
		return s.ended(ctx)
	}
	return l.read(ctx)
}

// enterLoads counts an LRS stream of a caller, apart from its ADS streams, or
// refuses it.
func (s *Server) enterLoads(l *loadStream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining != nil {
		return s.draining
	}
	lim := s.cfg.Limits
	if err := s.lrs.enter(l.who, "LRS", bound{"XDS.StreamsPerSource", lim.StreamsPerSource}, bound{"XDS.LRSStreamsPerCaller", lim.LRSStreamsPerCaller}); err != nil {
		return err
	}
	s.reporters[l] = struct{}{}
	return nil
}

func (s *Server) exitLoads(l *loadStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lrs.leave(l.who)
	delete(s.reporters, l)
}

// openLoads lists the LRS streams.
func (s *Server) openLoads() []*loadStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*loadStream, 0, len(s.reporters))
	for l := range s.reporters {
		list = append(list, l)
	}
	return list
}

// endMute ends the LRS streams on which nothing came at all.
func (s *Server) endMute(now time.Time) {
	patience := s.cfg.Limits.StallAfter
	for _, l := range s.openLoads() {
		if !l.met.Load() && now.Sub(l.opened) > patience {
			l.end(status.Errorf(status.StreamStalled, "no request within %s", patience))
		}
	}
}

// read takes in reports until the stream ends.
func (l *loadStream) read(ctx context.Context) error {
	s := l.srv
	defer l.msg.release() // of a report that could not be read
	budget := rate.NewLimiter(loadRate, loadBurst)
	for {
		switch err := l.conn.RecvMsg(&l.msg); {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return s.ended(ctx)
		case err != nil:
			return err
		}
		if l.msg.size > l.msg.limit {
			return l.refuse(ctx, status.New(status.LimitExceeded, "a load report of %d bytes, the limit is %d",
				l.msg.size, l.msg.limit).With("limit", "XDS.LoadReportBytes").Err())
		}
		now := time.Now()
		if l.msg.wantNode {
			if err := l.meet(); err != nil {
				return err
			}
			defer l.part()
		}
		l.take(now)
		l.msg.release()
		if s.throttle(ctx, l.who, l.msg.node.id, budget) != nil {
			return s.ended(ctx)
		}
	}
}

// meet learns what kind of client it is, and asks for its reports.
func (l *loadStream) meet() error {
	l.met.Store(true)
	l.msg.wantNode = false
	l.kind = kindOf(l.msg.node.userAgent, false)
	if on := l.srv.cfg.Events.LoadStreams; on != nil {
		on(l.loadKind(), 1)
	}
	return l.conn.SendMsg(&loadstatsv3.LoadStatsResponse{
		SendAllClusters: true, ReportEndpointGranularity: true, LoadReportingInterval: durationpb.New(loadInterval),
	})
}

func (l *loadStream) part() {
	if on := l.srv.cfg.Events.LoadStreams; on != nil {
		on(l.loadKind(), -1)
	}
}

func (l *loadStream) loadKind() LoadKind {
	if l.kind.envoy {
		return EnvoyLoad
	}
	return GRPCLoad
}

// refuse ends a stream that broke a limit, not faster than a client comes back.
func (l *loadStream) refuse(ctx context.Context, reason error) error {
	if on := l.srv.cfg.Events.Ended; on != nil {
		on(l.who, l.msg.node.id, l.kind.name, reason)
	}
	select {
	case <-time.After(pause):
		return reason
	case <-ctx.Done():
		return l.srv.ended(ctx)
	}
}

// take hands on what the report at hand says, one service at a time.
func (l *loadStream) take(now time.Time) {
	if l.srv.cfg.Loads == nil {
		return
	}
	defer func() { l.last = now }()
	if !l.msg.timely(now.Sub(l.srv.since)) {
		l.dropped(views.Name{}, DropInterval, len(l.msg.rows))
		return
	}
	l.taken = l.taken[:0]
	clear(l.named)
	snap, ports := l.srv.cfg.Snapshot(), false
	for i := range l.msg.parts {
		p := &l.msg.parts[i]
		if t := l.takePart(snap, p, now); len(t.entries) > 0 {
			l.taken = append(l.taken, t)
			ports = ports || p.name.port != 0
		}
	}
	if ports {
		l.taken = mergePorts(l.taken)
	}
	for i := range l.taken {
		t := &l.taken[i]
		l.srv.cfg.Loads(LoadReport{Who: l.who, Kind: l.loadKind(), At: now, Interval: t.interval, Service: t.service, Entries: t.entries})
		*t = taken{}
	}
	l.calledNobody(snap, now)
}

// spokenFor is how long a service that is missing from a client's reports is
// still known to be one that it calls.
const spokenFor = 30 * time.Second

// calledNobody reports, of services that the client called a moment ago and that
// this report does not name, that it called nobody: clients leave out what is
// idle, and what follows on what must not be lost by that.
func (l *loadStream) calledNobody(snap *views.Snapshot, now time.Time) {
	interval := now.Sub(l.last)
	for n, at := range l.spoke {
		if at.Equal(now) {
			continue
		}
		v := snap.Get(n)
		if v == nil || now.Sub(at) > spokenFor || !l.scope(v) {
			delete(l.spoke, n)
		} else if interval > 0 && interval <= maxLoadInterval {
			l.srv.cfg.Loads(LoadReport{Who: l.who, Kind: l.loadKind(), At: now, Interval: interval, Service: n})
		}
	}
}

// timely reports whether each part of the report covers a time that it can be
// judged by. The first report of a stream after our absence covers a part of
// that, however short it is: Envoy tries every five seconds, and loses what it
// counted before its last try. An instance that was repaired meanwhile must not be
// withdrawn for it.
func (m *loadMessage) timely(present time.Duration) bool {
	longest := min(maxLoadInterval, present)
	return !slices.ContainsFunc(m.parts, func(p loadPart) bool { return p.interval <= 0 || p.interval > longest })
}

// takePart reads one Cluster's part. Names that can be nobody's, such as that of
// Envoy's own Cluster of us, are passed over.
func (l *loadStream) takePart(snap *views.Snapshot, p *loadPart, now time.Time) taken {
	rows := l.msg.rows[p.from:p.to]
	if p.name.text == "" {
		return taken{}
	}
	v := snap.Get(p.name.service)
	port, known := 0, false
	if v != nil {
		port, known = portOf(v, p.name.port)
	}
	switch {
	case v != nil && !l.scope(v):
		l.dropped(p.name.service, DropScope, len(rows))
		return taken{}
	case !known:
		l.dropped(p.name.service, DropUnknown, len(rows))
		return taken{}
	case l.repeats(p.name):
		l.dropped(p.name.service, DropRepeated, len(rows))
		return taken{}
	}
	l.spoke[v.Name] = now // also when its calls cannot be told apart
	t := taken{service: v.Name, interval: p.interval}
	if l.kind.envoy {
		t.entries = l.byAddress(v, port, rows, now.Add(-p.interval), now)
	} else {
		t.entries = l.byLocality(v, rows, l.heldFor(p, port, now))
	}
	return t
}

// repeats reports whether the report at hand has named the Cluster before. What is
// read of a service takes room for all its members: a report that repeats a name
// as often as it fits would take the process's memory.
func (l *loadStream) repeats(n resourceName) bool {
	if _, is := l.named[n]; is {
		return true
	}
	if l.named == nil {
		l.named = make(map[resourceName]struct{})
	}
	l.named[n] = struct{}{}
	return false
}

// byAddress reads Envoy's counts: an endpoint is known by its address.
func (l *loadStream) byAddress(v *views.View, port int, rows []loadRow, from, now time.Time) []LoadEntry {
	book := l.srv.rosters.book(v, port, now)
	var lost [LoadDrops]int
	t := l.tally(len(book.uids), len(rows))
	for i := range rows {
		r := &rows[i]
		k, uid, why := book.owner(r.addr, from)
		if uid == 0 {
			lost[why]++
			continue
		}
		t.add(k, uid, 0, r)
	}
	l.droppedAll(v.Name, &lost)
	return t.entries()
}

// heldFor lists, by uid, what the client on the same connection held of an
// assignment for the whole interval, at the smallest of its weights; weight 0 if
// it did not. Nil: it is not known.
func (l *loadStream) heldFor(p *loadPart, port int, now time.Time) []given {
	ads := l.srv.connections.of(l.key)
	if ads == nil || ads.who != l.who {
		return nil
	}
	list := ads.heldSince(p.name.text, now.Add(-p.interval), now)
	if len(list) == 0 {
		return nil
	}
	zone, size := ads.shape.zone, ads.shape.size
	first := l.srv.rosters.roster(list[0], port, zone)
	if len(list) == 1 && first.view.Forms[size] == views.PerEndpoint {
		return first.members
	}
	l.given = append(l.given[:0], first.members...)
	for i := range l.given {
		if g := &l.given[i]; !first.apart(g, size) {
			g.weight = 0
		}
	}
	for _, v := range list[1:] {
		l.srv.rosters.roster(v, port, zone).narrow(l.given, size)
	}
	return l.given
}

// byLocality reads a gRPC client's counts: a locality of its own is an instance.
// Instances that it held and has no counts of were never picked, unless they are
// farther away than those that it calls.
func (l *loadStream) byLocality(v *views.View, rows []loadRow, h []given) []LoadEntry {
	var lost [LoadDrops]int
	called := tiers // the nearest tier that was called
	t := l.tally(len(h), len(rows))
	for i := range rows {
		r := &rows[i]
		k, near := -1, r.tier
		if r.uid != 0 {
			k = findGiven(h, r.uid)
		}
		switch {
		case r.uid == 0:
			lost[DropShared]++
		case k >= 0:
			near = h[k].tier
			t.add(k, r.uid, h[k].weight, r)
		case hasMember(v, r.uid): // its tier is not known
			t.add(-1, r.uid, 0, r)
			continue
		default:
			lost[DropEndpoint]++
			continue
		}
		if r.issued > 0 {
			called = min(called, near)
		}
	}
	l.droppedAll(v.Name, &lost)
	entries := t.entries()
	if len(entries) == 0 || called == tiers {
		return entries
	}
	for k := range h {
		if g := &h[k]; t.slots[k] == 0 && g.weight > 0 && g.tier <= called {
			entries = append(entries, LoadEntry{UID: g.uid, Weight: g.weight})
		}
	}
	return entries
}

func (l *loadStream) dropped(n views.Name, why LoadDrop, entries int) {
	if on := l.srv.cfg.Events.LoadDropped; on != nil && entries > 0 {
		on(l.who, n, why, entries)
	}
}

func (l *loadStream) droppedAll(n views.Name, lost *[LoadDrops]int) {
	for why, entries := range lost {
		l.dropped(n, LoadDrop(why), entries)
	}
}
