package envoy

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// The estate of C16 at its full size; the minute of watching after the restart
// is shortened. What delays the views in the case, an orchestrator that is late,
// is a crowd of other services here: they take a while to build, and whoever asks
// in that while must not be told that there is nothing.
const (
	estate  = 50
	members = 10
	others  = 2000
	crowd   = 7
	watch   = 10 * time.Second
)

// C16: the restart that emptied everyone.
func TestC16RestartEmptiesNobody(t *testing.T) {
	w := start(t)
	var bs []*harness.Backend
	var changes []*registryv1.Change
	for i := range estate {
		changes = append(changes, harness.PutService(hostOf(i)))
		for k := range members {
			label := fmt.Sprintf("m%d", k)
			if i > 0 {
				addr := netip.AddrFrom4([4]byte{10, 1, byte(i), byte(k + 1)})
				changes = append(changes, harness.PutInstance(hostOf(i), label, netip.AddrPortFrom(addr, 8443)))
				continue
			}
			b := harness.StartBackend(t, label) // the first service's members are real
			bs = append(bs, b)
			changes = append(changes, harness.PutBackend(hostOf(i), b))
		}
	}
	w.api.Apply(t, changes...)
	w.published(hostOf(estate-1), members)
	w.reports("voices.shop", 4)
	w.crowd()

	e := w.envoy("under-load", false)
	e.WaitLive(t, starts)
	load := harness.StartLoad(t, map[string]*harness.Caller{
		"envoy": harness.DialPlain(t, e.Outbound.String(), hostOf(0)), "grpc-go": w.dial(hostOf(0)),
	})
	load.More(t, 50)
	want := map[string]int{"voices.shop": 4}
	for i := range estate {
		want[hostOf(i)] = members
	}
	ctx, stop := context.WithCancel(context.Background())
	watchers := []*watcher{
		{name: "follows", kind: "envoy", resume: true}, {name: "starts afresh", kind: "envoy"},
		{name: "follows, state of the world", kind: "gRPC Go", resume: true}, {name: "starts afresh, state of the world", kind: "gRPC Go"},
	}
	var wg sync.WaitGroup
	for _, wa := range watchers {
		wa.want, wa.conn, wa.mark = want, w.s.DialXDS(t, w.web), rawxds.NewWatermark()
		wg.Go(func() { wa.run(ctx) })
	}
	lookups := &lookups{}
	wg.Go(func() { lookups.run(ctx, w.s.DNS, hostOf(1)+".svc.sightline.test.") })
	defer func() { stop(); wg.Wait() }()
	for _, wa := range watchers {
		wa.settled(t, 1)
	}

	w.s.Kill()
	load.More(t, 100)
	w.s.Restart(t)
	for _, wa := range watchers {
		wa.settled(t, 2)
	}
	time.Sleep(watch) // C16 looks at everything that comes after a restart
	load.More(t, 50)
	load.Stop(t)
	stop()
	wg.Wait()
	for _, wa := range watchers {
		for _, bad := range wa.bad {
			t.Errorf("%s: %s", wa.name, bad)
		}
	}
	lookups.judge(t)
	for _, b := range bs {
		if b.Calls() == 0 {
			t.Errorf("%s was never called", b.Name)
		}
	}
	w.refusedNothing(e)
	w.stays("voices.shop", 4)
}

// crowd registers many services that nobody asks for.
func (w *world) crowd() {
	w.Helper()
	var changes []*registryv1.Change
	for i := range others {
		host := fmt.Sprintf("other-%04d.crowd", i)
		changes = append(changes, harness.PutService(host))
		for k := range crowd {
			addr := netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), byte(k + 1)})
			changes = append(changes, harness.PutInstance(host, fmt.Sprintf("m%d", k), netip.AddrPortFrom(addr, 8443)))
		}
		if len(changes) > 900 || i == others-1 {
			w.api.Apply(w, changes...)
			changes = nil
		}
	}
	w.published(fmt.Sprintf("other-%04d.crowd", others-1), crowd)
}

// lookups asks DNS all the time (C29, step 1): an existing name is answered as
// it is, or not at all, never by "there is no such name".
type lookups struct {
	answers, other int
	bad            []string
}

func (l *lookups) run(ctx context.Context, server, name string) {
	client := &dns.Client{Timeout: 200 * time.Millisecond}
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		q := new(dns.Msg)
		q.SetQuestion(name, dns.TypeA)
		q.SetEdns0(1232, false)
		a, _, err := client.Exchange(q, server)
		switch {
		case err != nil || a.Rcode == dns.RcodeServerFailure || a.Truncated && len(a.Answer) == 0:
			l.other++ // nobody there, or not yet, or too often
		case a.Rcode == dns.RcodeSuccess && len(a.Answer) == members:
			l.answers++
		default:
			l.bad = append(l.bad, a.String())
		}
	}
}

func (l *lookups) judge(t *testing.T) {
	t.Helper()
	t.Logf("%d lookups answered, %d not", l.answers, l.other)
	if l.answers == 0 || l.other == 0 {
		t.Error("the lookups did not see both a server and its absence")
	}
	if len(l.bad) > 0 {
		t.Errorf("%d lookups were told what was not so, the first: %s", len(l.bad), l.bad[0])
	}
}

func hostOf(i int) string { return fmt.Sprintf("orders-%02d.shop", i) }

// reports registers a service whose members speak for themselves and fall silent:
// after a restart nothing is known about them.
func (w *world) reports(host string, n int) {
	w.Helper()
	svc := harness.PutService(host)
	svc.GetPutService().Profile = "self-reporting"
	changes := []*registryv1.Change{{Change: &registryv1.Change_PutProfile{PutProfile: &registryv1.Profile{
		Namespace: "shop", Name: "self-reporting", Supplies: []registryv1.EvidenceClass{registryv1.EvidenceClass_EVIDENCE_CLASS_SELF},
	}}}, svc}
	for k := range n {
		addr := netip.AddrFrom4([4]byte{10, 2, 0, byte(k + 1)})
		changes = append(changes, harness.PutInstance(host, fmt.Sprintf("v%d", k), netip.AddrPortFrom(addr, 8443)))
	}
	var uids []string
	for _, r := range w.api.Apply(w, changes...)[2:] {
		uids = append(uids, r.GetUid())
	}
	who := w.s.CA.Mint(w, "/ns/shop/sa/voices")
	ctx, cancel := context.WithTimeout(context.Background(), starts)
	defer cancel()
	st, err := healthv1.NewReportServiceClient(harness.DialTLS(w, w.s.API, who)).ReportSelf(ctx)
	if err != nil {
		w.Fatal(err)
	}
	batch := &healthv1.SelfBatch{}
	for k := range n {
		batch.Instance = append(batch.Instance, uint32(k))
		batch.Status = append(batch.Status, healthv1.SelfStatus_SELF_STATUS_SERVING)
	}
	for _, q := range []*healthv1.ReportSelfRequest{
		{Frame: &healthv1.ReportSelfRequest_Bind{Bind: &healthv1.SelfBind{Instances: uids}}},
		{Frame: &healthv1.ReportSelfRequest_Batch{Batch: batch}},
	} {
		if err := st.Send(q); err != nil {
			w.Fatal(err)
		}
	}
	if r, err := st.CloseAndRecv(); err != nil || r.GetTally().GetAccepted() != uint64(n) {
		w.Fatalf("self-reports: %v, %v", r, err)
	}
	w.published(host, n)
}

// stays checks that a service still lists n members.
func (w *world) stays(host string, n int) {
	w.Helper()
	v, err := w.api.View(host)
	if err != nil || len(harness.Listed(v, 0)) != n {
		w.Errorf("%s lists %v: %v", host, harness.Listed(v, 0), err)
	}
}

// watcher is a client that opens one stream after the other and notes every
// assignment that is smaller than it was at first.
type watcher struct {
	name   string
	kind   string // "envoy": delta; else state of the world
	resume bool   // offers what it holds
	want   map[string]int
	conn   *grpc.ClientConn
	mark   *rawxds.Watermark // no version goes down, over all of its streams

	mu       sync.Mutex
	complete int // streams on which every assignment was held
	bad      []string
}

func (wa *watcher) run(ctx context.Context) {
	var old *rawxds.Client
	for ctx.Err() == nil {
		c, err := wa.open(ctx, old)
		if err != nil {
			time.Sleep(20 * time.Millisecond) // nobody is there
			continue
		}
		done := false
		_ = c.Await(time.Minute, func() bool {
			if !done && len(c.Held(rawxds.EDS)) == len(wa.want) && (len(c.Responses(rawxds.EDS)) > 0 || old != nil) {
				done = true
				wa.mu.Lock()
				wa.complete++
				wa.mu.Unlock()
			}
			return ctx.Err() != nil
		})
		c.Close()
		wa.judge(c)
		if wa.resume {
			old = c
		}
	}
}

func (wa *watcher) open(ctx context.Context, old *rawxds.Client) (*rawxds.Client, error) {
	names := make([]string, 0, len(wa.want))
	for n := range wa.want {
		names = append(names, n)
	}
	node := rawxds.Node(wa.name, wa.kind, "local", "a")
	if wa.kind == "envoy" {
		c, err := rawxds.Delta(ctx, wa.conn, node, nil)
		if err != nil {
			return nil, err
		}
		c.Keep(wa.mark).Carry(old, rawxds.EDS)
		return c, c.Resume(rawxds.EDS, c.Versions(rawxds.EDS), names...)
	}
	c, err := rawxds.Sotw(ctx, wa.conn, node, nil)
	if err != nil {
		return nil, err
	}
	version := ""
	if old != nil {
		version = old.Version(rawxds.EDS)
	}
	if wa.resume { // without what it held, a client has no version to compare
		c.Keep(wa.mark)
	}
	c.Carry(old, rawxds.EDS)
	return c, c.AskFrom(rawxds.EDS, version, names...)
}

func (wa *watcher) judge(c *rawxds.Client) {
	wa.mu.Lock()
	defer wa.mu.Unlock()
	wa.bad = append(wa.bad, c.Violations()...)
	for _, r := range c.Responses(rawxds.EDS) {
		for _, n := range r.Removed {
			wa.bad = append(wa.bad, n+" was removed")
		}
		for _, res := range r.Resources {
			list, err := res.Addresses()
			if err != nil || len(list) < wa.want[res.Name] {
				wa.bad = append(wa.bad, fmt.Sprintf("%s with %d of %d endpoints (%v)", res.Name, len(list), wa.want[res.Name], err))
			}
		}
	}
}

// settled waits for the n-th stream on which every assignment is held.
func (wa *watcher) settled(t *testing.T, n int) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, wa.name+" holds everything", func() error {
		wa.mu.Lock()
		defer wa.mu.Unlock()
		if wa.complete < n {
			return fmt.Errorf("on %d of %d streams", wa.complete, n)
		}
		return nil
	})
}
