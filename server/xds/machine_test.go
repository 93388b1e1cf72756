package xds_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	"github.com/sightlinedev/sightline/views"
)

// Whatever happens to services, subscriptions, streams and acknowledgements: when
// things come to rest, every client holds what the snapshot says, and none has
// seen a version go down.
func TestAccumulatedStateIsTheSnapshot(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 40).Draw(rt, "steps")
		r := &recorder{}
		synctest.Test(t, func(*testing.T) { r.run(func() { runWorld(r, func(w *world) { play(w, steps) }) }) })
		if len(r.complaints) > 0 {
			rt.Fatalf("%s", strings.Join(r.complaints, "\n"))
		}
	})
}

// recorder is a testing.TB for a bubble inside a property: it keeps complaints,
// which the property's own goroutine raises.
type recorder struct {
	testing.TB
	complaints []string
}

type stopped struct{}

func (r *recorder) Helper() {}
func (r *recorder) Errorf(format string, args ...any) {
	r.complaints = append(r.complaints, fmt.Sprintf(format, args...))
}
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); panic(stopped{}) }
func (r *recorder) Fatal(args ...any)                 { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) run(do func()) {
	defer func() {
		if p := recover(); p != nil && p != any(stopped{}) {
			panic(p)
		}
	}()
	do()
}

// step is one thing that happens; a, b and c choose among what it can happen to.
type step struct {
	do      string
	a, b, c int
}

func drawStep(rt *rapid.T) step {
	return step{
		do: rapid.SampledFrom([]string{"put", "put", "urge", "drop", "subscribe", "unsubscribe", "list",
			"reconnect", "poison", "delay", "wait", "policy"}).Draw(rt, "do"),
		a: rapid.IntRange(0, 5).Draw(rt, "a"), b: rapid.IntRange(0, 5).Draw(rt, "b"), c: rapid.IntRange(0, 63).Draw(rt, "c"),
	}
}

// hostAt names the six services; the last two are in a namespace that the policy
// may take away.
func hostAt(i int) string {
	if i >= 4 {
		return fmt.Sprintf("s%d.bank", i)
	}
	return fmt.Sprintf("s%d.shop", i)
}

// actor is a client that outlives its streams.
type actor struct {
	w      *world
	kind   string // envoy, named, sotw-envoy, sotw-go, sotw-java
	agent  string
	delta  bool
	mark   *rawxds.Watermark
	client *rawxds.Client

	mu     sync.Mutex
	names  map[string]bool // asked for by name
	poison map[string]bool
	delay  time.Duration
	opened chan struct{}
	offer  string // sotw-envoy: the version of assignments that it comes back with
}

func (a *actor) react(r *rawxds.Response) rawxds.Answer {
	a.mu.Lock()
	opened := a.opened
	a.mu.Unlock()
	<-opened
	a.mu.Lock()
	ans := rawxds.Answer{After: a.delay}
	for _, n := range r.Names() {
		if a.poison[n] && (a.delta || r.Type == rawxds.EDS) {
			ans.Reject = "no " + n
		}
	}
	a.mu.Unlock()
	if r.Type == rawxds.CDS && ans.Reject == "" {
		a.follow(r)
	}
	return ans
}

// follow asks for the assignments of new Clusters, as Envoy does.
func (a *actor) follow(r *rawxds.Response) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.kind {
	case "envoy":
		var news []string
		for _, n := range r.Names() {
			if !a.names[n] {
				news, a.names[n] = append(news, n), true
			}
		}
		for _, n := range r.Removed {
			if a.names[n] {
				delete(a.names, n)
				_ = a.client.Unsubscribe(rawxds.EDS, n)
			}
		}
		if len(news) > 0 {
			_ = a.client.Subscribe(rawxds.EDS, news...)
		}
	case "sotw-envoy":
		a.names = make(map[string]bool)
		for _, n := range r.Names() {
			a.names[n] = true
		}
		_ = a.client.AskFrom(rawxds.EDS, a.offer, sorted(a.names)...)
		a.offer = ""
	}
}

func sorted(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

// connect opens a stream, offering what an earlier one left.
func (a *actor) connect() {
	old := a.client
	if old != nil {
		a.w.end(old)
	}
	a.mu.Lock()
	a.opened = make(chan struct{})
	names := sorted(a.names)
	if old != nil && old.Version(rawxds.EDS) != "" {
		a.offer = old.Version(rawxds.EDS)
	}
	a.mu.Unlock()
	c := a.w.open(a.delta, a.agent, a.react).Keep(a.mark)
	a.client = c
	close(a.opened)
	if a.delta {
		a.resume(old, c, names)
		return
	}
	version := func(typ string) string {
		if old == nil {
			return ""
		}
		return old.Version(typ)
	}
	switch a.kind {
	case "sotw-envoy":
		must(a.w, c.AskFrom(rawxds.CDS, version(rawxds.CDS)))
		must(a.w, c.AskFrom(rawxds.RDS, version(rawxds.RDS), outbound))
	default:
		must(a.w, c.AskFrom(rawxds.CDS, version(rawxds.CDS), names...))
		must(a.w, c.AskFrom(rawxds.EDS, version(rawxds.EDS), names...))
	}
}

func (a *actor) resume(old, c *rawxds.Client, names []string) {
	offered := func(typ string) map[string]string {
		if old == nil {
			return nil
		}
		return old.Versions(typ)
	}
	if a.kind == "envoy" {
		must(a.w, c.Carry(old, rawxds.CDS, rawxds.EDS, rawxds.RDS).Resume(rawxds.CDS, offered(rawxds.CDS)))
		if len(names) > 0 {
			must(a.w, c.Resume(rawxds.EDS, offered(rawxds.EDS), names...))
		}
		must(a.w, c.Resume(rawxds.RDS, offered(rawxds.RDS), outbound))
		return
	}
	must(a.w, c.Carry(old, rawxds.EDS).Resume(rawxds.EDS, offered(rawxds.EDS), names...))
}

// play runs the steps, lets things come to rest, and compares.
func play(w *world, steps []step) {
	var actors []*actor
	for _, k := range [][2]string{{"envoy", "envoy"}, {"named", "envoy"}, {"sotw-envoy", "envoy"}, {"sotw-go", "gRPC Go"}, {"sotw-java", "gRPC Java"}} {
		a := &actor{w: w, kind: k[0], agent: k[1], delta: !strings.HasPrefix(k[0], "sotw"),
			mark: rawxds.NewWatermark(), names: make(map[string]bool), poison: make(map[string]bool)}
		a.connect()
		actors = append(actors, a)
	}
	serial := 0
	for _, s := range steps {
		w.perform(actors, s, &serial)
	}
	time.Sleep(40 * time.Second)
	for _, a := range actors[:2] {
		a.compare(a.poison)
	}
	// The poison is gone: what changes now arrives everywhere.
	for _, a := range actors {
		a.mu.Lock()
		clear(a.poison)
		a.delay = 0
		a.mu.Unlock()
	}
	for i := range 6 {
		if v := w.snap.Load().Get(nameOf(hostAt(i))); v != nil {
			serial++
			s := service{host: hostAt(i), addrs: []string{address(serial)}, ports: []uint16{uint16(7000 + serial)}}
			w.urge(s)
		}
	}
	time.Sleep(40 * time.Second)
	for _, a := range actors {
		a.compare(nil)
		w.end(a.client)
	}
	w.emptied()
}

// emptied checks that nothing of the streams is left behind.
func (w *world) emptied() {
	time.Sleep(time.Second)
	if n := w.srv.Streams(); n != 0 {
		w.Errorf("%d streams are open after all clients left", n)
	}
	if n := w.srv.WildStreams(); n != 0 {
		w.Errorf("%d streams are told of every service after all clients left", n)
	}
	if n := w.srv.KnownNames(); n != 0 {
		w.Errorf("%d names are known after all clients left", n)
	}
}

func address(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255) }

func (w *world) perform(actors []*actor, s step, serial *int) {
	host := hostAt(s.a)
	a := actors[s.b%len(actors)]
	switch s.do {
	case "put", "urge":
		v := service{host: host, ports: [][]uint16{{8080}, {8080, 9090}, {8081}}[s.c%3]}
		for range s.b {
			*serial++
			v.addrs = append(v.addrs, address(*serial))
		}
		if s.do == "urge" {
			w.urge(v)
		} else {
			w.put(v)
		}
	case "drop":
		if w.snap.Load().Get(nameOf(host)) != nil {
			w.drop(host)
		}
	case "subscribe", "unsubscribe":
		actors[1].toggle(s, host)
	case "list":
		actors[3+s.a%2].list(s.c)
	case "reconnect":
		a.connect()
	case "poison":
		a.mu.Lock()
		a.poison[host] = s.c%4 != 0
		a.mu.Unlock()
	case "delay":
		a.mu.Lock()
		a.delay = []time.Duration{0, 50 * time.Millisecond, 700 * time.Millisecond}[s.c%3]
		a.mu.Unlock()
	case "wait":
		time.Sleep(time.Duration(s.c) * 20 * time.Millisecond)
	case "policy":
		p := *w.policy.Load()
		p.Generation++
		p.Default = []authz.DefaultScope{authz.OwnNamespace, authz.WholeTrustDomain}[s.c%2]
		w.policy.Store(&p)
	}
}

func (a *actor) toggle(s step, host string) {
	if s.c%5 == 0 {
		host += ":9090"
	}
	if s.do == "subscribe" {
		a.mu.Lock()
		a.names[host] = true
		a.mu.Unlock()
		must(a.w, a.client.Subscribe(rawxds.EDS, host))
		return
	}
	a.mu.Lock()
	delete(a.names, host)
	a.mu.Unlock()
	must(a.w, a.client.Unsubscribe(rawxds.EDS, host))
}

// list makes the services of the bits the ones that a gRPC client asks for.
func (a *actor) list(bits int) {
	names := make(map[string]bool)
	for i := range 6 {
		if bits&(1<<i) != 0 {
			names[hostAt(i)] = true
		}
	}
	a.mu.Lock()
	a.names = names
	a.mu.Unlock()
	must(a.w, a.client.Ask(rawxds.CDS, sorted(names)...))
	must(a.w, a.client.Ask(rawxds.EDS, sorted(names)...))
}

// expected lists the Clusters that exist for the clients, with their views.
func (w *world) expected() map[string]*views.View {
	all := make(map[string]*views.View)
	for v := range w.snap.Load().All() {
		if v.Name.Namespace != "shop" && w.policy.Load().Default == authz.OwnNamespace {
			continue
		}
		for i, p := range v.Ports {
			if i == 0 {
				all[v.Name.Host()] = v
			} else {
				all[fmt.Sprintf("%s:%d", v.Name.Host(), p.Number)] = v
			}
		}
	}
	return all
}

// compare holds a client against the snapshot, names in but aside.
func (a *actor) compare(but map[string]bool) {
	want := a.w.expected()
	a.mu.Lock()
	names := maps.Clone(a.names)
	a.mu.Unlock()
	if err := a.client.Err(); err != nil {
		a.w.Errorf("%s: the stream ended: %v", a.kind, err)
		return
	}
	for n := range names {
		if !skipped(but, n) {
			a.compareAssignment(n, want[n])
		}
	}
	clusters := a.client.Held(rawxds.CDS)
	switch a.kind {
	case "envoy", "sotw-envoy":
		a.compareSets(want, clusters, but)
	case "sotw-go", "sotw-java":
		for n := range names {
			if _, ok := clusters[n]; want[n] != nil && !ok {
				a.w.Errorf("%s: lacks the Cluster %s", a.kind, n)
			}
		}
	}
}

func skipped(but map[string]bool, n string) bool {
	host, _, _ := strings.Cut(n, ":")
	return but[host] || but[n]
}

func (a *actor) compareAssignment(n string, v *views.View) {
	r, ok := a.client.Held(rawxds.EDS)[n]
	if v == nil {
		if got, _ := addressesOf(r, ok); ok && (a.delta || a.kind == "sotw-go" && len(got) > 0) {
			a.w.Errorf("%s: still holds %s", a.kind, n)
		}
		return
	}
	var want []string
	port := v.Ports[0].Number
	if _, p, ok := strings.Cut(n, ":"); ok {
		_, _ = fmt.Sscan(p, &port)
	}
	for _, m := range v.Members {
		want = append(want, fmt.Sprintf("%s:%d", m.Endpoint.Addr, port))
	}
	got, err := addressesOf(r, ok)
	empty := a.kind == "sotw-java" && len(want) == 0 // one endpoint behind a full drop
	if !ok || err != nil || !same(got, want) && !empty {
		a.w.Errorf("%s: %s is %v (held %t, %v), want %v at %s: %s", a.kind, n, got, ok, err, want, v.Endpoint, brief(a.client.Responses("")))
	}
	if a.delta && ok && !strings.HasPrefix(r.Version, v.Endpoint.String()+"-") {
		a.w.Errorf("%s: %s at %s, want %s", a.kind, n, r.Version, v.Endpoint)
	}
}

func addressesOf(r rawxds.Resource, ok bool) ([]string, error) {
	if !ok {
		return nil, nil
	}
	return r.Addresses()
}

// compareSets holds an Envoy's Clusters and routes against what there is.
func (a *actor) compareSets(want map[string]*views.View, held map[string]rawxds.Resource, but map[string]bool) {
	for n, v := range want {
		r, ok := held[n]
		switch {
		case skipped(but, n):
		case !ok:
			a.w.Errorf("%s: lacks the Cluster %s: %s", a.kind, n, brief(a.client.Responses("")))
		case a.delta && !strings.HasPrefix(r.Version, v.Config.String()+"-"):
			a.w.Errorf("%s: the Cluster %s at %s, want %s", a.kind, n, r.Version, v.Config)
		}
	}
	for n := range held {
		if want[n] == nil && !skipped(but, n) {
			a.w.Errorf("%s: still holds the Cluster %s: %s", a.kind, n, brief(a.client.Responses("")))
		}
	}
	routes := a.client.Held(rawxds.RDS)[outbound]
	if routes.Body == nil {
		a.w.Errorf("%s: holds no routes: %s", a.kind, brief(a.client.Responses("")))
		return
	}
	got, err := routes.Clusters()
	all := slices.Sorted(maps.Keys(want))
	aside := func(n string) bool { return skipped(but, n) }
	if got, all = slices.DeleteFunc(got, aside), slices.DeleteFunc(all, aside); err != nil || !slices.Equal(got, all) {
		a.w.Errorf("%s: routes %v (%v), want %v: %s", a.kind, got, err, all, brief(a.client.Responses("")))
	}
}
