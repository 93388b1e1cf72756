package admin

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/identity/authz"
	"github.com/sightlinedev/sightline/identity/svid"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/server/desired"
	"github.com/sightlinedev/sightline/server/limits"
	"github.com/sightlinedev/sightline/server/status"
	"github.com/sightlinedev/sightline/views"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	operator = "spiffe://example.org/sightline/operator/ann"
	reader   = "spiffe://example.org/sightline/reader/dash" // is granted the namespace shop
	checkout = "spiffe://example.org/ns/shop/sa/checkout"
	ledger   = "spiffe://example.org/ns/bank/sa/ledger"
	stranger = "spiffe://other.org/ns/shop/sa/checkout"
)

var (
	checkoutName = registry.Name{Namespace: "shop", Service: "checkout"}
	ledgerName   = registry.Name{Namespace: "bank", Service: "ledger"}
)

// world is a Server over bufconn with a real Writer and real evaluators; what
// it reads beside is set by the test. It must be made inside a synctest bubble.
type world struct {
	t   *testing.T
	cfg Config
	adminv1.AdminServiceClient
	writer     *desired.Writer
	evaluators map[registry.Name]*health.Evaluator
	snapshot   *views.Snapshot
	clients    []Client
	resources  map[uint64][]Resource
	store      Store
	checks     []Check
	alarms     []string
	shed       time.Time
	waits      time.Time
	changes    []views.Change
	whole      bool
	history    map[registry.Name][]*views.View
	log        []Transition // newest first
	reads      int
	records    []desired.Record // made durable
	fullDisk   error
	stance     *health.Stance
	held       map[string]int // removals that a source's brake holds
	flapping   map[registry.UID]int
	released   []string
	rollout    *Rollout
	rollouts   []registry.Name
	third      health.Third
	dialBack   func(registry.UID) (DialBack, bool)
	edit       func(*health.Explanation)
	trial      func(context.Context, registry.Name, registry.Contract, time.Duration) (ContractTrial, error)
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, evaluators: make(map[registry.Name]*health.Evaluator), resources: make(map[uint64][]Resource),
		history: make(map[registry.Name][]*views.View), snapshot: views.NewSnapshot(true), whole: true,
	}
	w.writer = desired.New(desired.Config{
		Loaded:  registry.Load(1000, slices.Values([]registry.Row(nil)), nil),
		Commit:  func(context.Context, []registry.Row, []desired.Record) error { return nil },
		Refusal: func() error { return nil },
		Tell:    w.tell,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.writer.Run(ctx) }()
	w.cfg = w.config()
	lis := bufconn.Listen(1 << 16)
	srv := grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			return next(caller(ctx), req)
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return next(srv, &stream{ss, caller(ss.Context())})
		}))
	New(w.cfg).Register(srv)
	go srv.Serve(lis)
	conn, err := grpc.NewClient("passthrough:///buf", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	w.AdminServiceClient = adminv1.NewAdminServiceClient(conn)
	t.Cleanup(func() {
		conn.Close()
		srv.Stop()
		cancel()
		<-done
	})
	return w
}

func (w *world) config() Config {
	policy := &authz.Policy{TrustDomain: "example.org", Grants: []authz.Grant{{
		Caller: identity.Pattern{ID: identity.MustParse(reader)}, Callee: authz.Callee{Namespace: "shop"},
	}}}
	return Config{
		Process:   Process{Version: "1.2.3", Region: "eu", Zone: "a", Started: time.Now()},
		Snapshot:  func() *views.Snapshot { return w.snapshot },
		Policy:    func() *authz.Policy { return policy },
		Principal: svid.PrincipalFrom,
		Read:      w.writer.Read,
		Inspect:   w.inspect,
		Clients:   func() []Client { return slices.Clone(w.clients) },
		Resources: func(stream uint64) ([]Resource, bool) {
			list, ok := w.resources[stream]
			return slices.Clone(list), ok
		},
		Checks:   func() []Check { return w.checks },
		Store:    func() Store { return w.store },
		Shedding: func() (time.Duration, time.Time) { return 4 * time.Second, w.shed },
		Alarms:   func() []string { return w.alarms },
		ViewAt:   w.viewAt,
		Changes: func(_ context.Context, v views.Version) ([]views.Change, bool, error) {
			after := slices.DeleteFunc(slices.Clone(w.changes), func(c views.Change) bool { return !v.Less(c.Version) })
			return after, w.whole, nil
		},
		Transitions: w.transitions,
		Taps:        NewTaps(),
		API:         limits.Default().API,
		Record: func(_ context.Context, r desired.Record) error {
			if w.fullDisk == nil {
				w.records = append(w.records, r)
			}
			return w.fullDisk
		},
		Stance: func() *health.Stance { return w.stance },
		ReleaseQuarantine: func(_ context.Context, n registry.Name, uid registry.UID) (bool, error) {
			_, ok := w.flapping[uid]
			delete(w.flapping, uid)
			w.released = append(w.released, fmt.Sprintf("%s/%s after %d records", n, uid, len(w.records)))
			return ok, nil
		},
		ReleaseBrake: func(context.Context) (bool, error) {
			w.released = append(w.released, fmt.Sprintf("region after %d records", len(w.records)))
			w.stance = nil
			return true, nil
		},
		DialBack: func(uid registry.UID) (d DialBack, ok bool) {
			if w.dialBack == nil {
				return d, false
			}
			return w.dialBack(uid)
		},
		Rollouts: func() []registry.Name { return w.rollouts },
		Holders: func(n registry.Name) (streams []uint64) {
			for _, c := range w.clients {
				for _, r := range w.resources[c.Stream] {
					if r.Service == n {
						streams = append(streams, c.Stream)
					}
				}
			}
			return streams
		},
		ReleaseSource: func(source string) int {
			n := w.held[source]
			delete(w.held, source)
			return n
		},
		TestContract: func(ctx context.Context, n registry.Name, draft registry.Contract, since time.Duration) (ContractTrial, error) {
			return w.trial(ctx, n, draft, since)
		},
	}
}

func caller(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	if ids := md.Get("who"); len(ids) > 0 {
		return svid.WithPrincipal(ctx, identity.Principal{ID: identity.MustParse(ids[0]), Addr: netip.MustParseAddr("10.9.9.9")})
	}
	return ctx
}

type stream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *stream) Context() context.Context { return s.ctx }

// callerOf is the context of a request that has arrived.
func callerOf(id string) context.Context {
	return svid.WithPrincipal(context.Background(), identity.Principal{ID: identity.MustParse(id)})
}

func as(id string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "who", id)
}

// tell does what a service's shard does with a change.
func (w *world) tell(c registry.Change) {
	e := w.evaluators[c.Name]
	if e == nil {
		e = health.New(c.Name, time.Now(), health.Memory{})
		w.evaluators[c.Name] = e
	}
	e.Apply(time.Now(), c)
	e.Judge(time.Now())
}

func (w *world) inspect(_ context.Context, n registry.Name) (i Inspection, ok bool, err error) {
	e := w.evaluators[n]
	if e == nil {
		return i, false, nil
	}
	i.Instances = e.Explain(time.Now())
	i.Rollout, i.Third = w.rollout, w.third
	for k := range i.Instances {
		if w.edit != nil {
			w.edit(&i.Instances[k])
		}
	}
	for k := range i.Instances {
		v := &i.Instances[k].Verdict
		if v.Flaps = w.flapping[v.UID]; v.Flaps > 0 {
			v.Quarantined = true
		}
	}
	if !w.waits.IsZero() {
		i.Until, i.Why = w.waits, "additions window"
	}
	return i, true, nil
}

func (w *world) viewAt(_ context.Context, n registry.Name, at views.Version) (found *views.View, ok bool, err error) {
	for _, v := range w.history[n] {
		if !at.Less(v.Version()) {
			found, ok = v, true
		}
	}
	return found, ok, nil
}

func (w *world) transitions(_ context.Context, q TransitionQuery) (out []Transition, err error) {
	w.reads++
	for _, t := range w.log {
		if (q.Name.IsZero() || q.Name == t.Name) && (q.UID == 0 || q.UID == t.UID) && !t.At.Before(q.Since) &&
			(q.Until.IsZero() || t.At.Before(q.Until)) && len(out) < q.Limit {
			out = append(out, t)
		}
	}
	return out, nil
}

// put stores a service with instances that report about themselves and hold a
// lease of 25 s. It returns their uids.
func (w *world) put(n registry.Name, id string, addrs ...string) (uids []registry.UID) {
	w.t.Helper()
	ms := []registry.Mutation{
		registry.PutProfile{Row: registry.Profile{Namespace: n.Namespace, Name: "go", Source: "api", Supplies: registry.ClassSet(0).With(registry.ClassSelf)}},
		registry.PutService{Row: registry.Service{Name: n, Profile: "go", Source: "api", Ports: []registry.Port{{Name: "grpc", Number: 9090, Protocol: registry.GRPC}}}},
	}
	for i, addr := range addrs {
		ms = append(ms, registry.PutInstance{Row: registry.Instance{
			Service: n, Label: string(rune('a' + i)), Identity: identity.MustParse(id), Lease: 25 * time.Second, Source: "api",
			Endpoint: registry.Endpoint{Addr: netip.MustParseAddr(addr)}, Proof: registry.ByOperator,
		}})
	}
	r, err := w.writer.Write(context.Background(), desired.Request{Mutations: ms})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, o := range r.Outcomes[2:] {
		uids = append(uids, o.UID)
	}
	return uids
}

// view is a view of a service at a seq, of members in the states given.
func view(n registry.Name, seq uint64, states map[registry.UID]views.State) *views.View {
	v := &views.View{Name: n, Endpoint: views.Version{Epoch: 7, Seq: seq}, Config: views.Version{Epoch: 7, Seq: 1}, Confidence: views.ConfidenceSingleClass}
	for uid, s := range states {
		v.Members = append(v.Members, &views.Member{UID: uid, State: s, Weight: 100, BaseWeight: 100, Listed: s.Serving()})
	}
	slices.SortFunc(v.Members, func(a, b *views.Member) int { return int(a.UID) - int(b.UID) })
	return v
}

func wants(t *testing.T, err error, grpcCode codes.Code, code status.Code) {
	t.Helper()
	if got, _ := status.CodeOf(err); grpcstatus.Code(err) != grpcCode || got != code {
		t.Errorf("got %v (%v), want %v %v", err, got, grpcCode, code)
	}
}
