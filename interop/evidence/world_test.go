package evidence

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightlinedev/sightline/interop/harness"
	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	healthv1 "github.com/sightlinedev/sightline/proto/sightline/health/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

const (
	starts   = 20 * time.Second // what a test needs before it begins
	warm     = 90 * time.Second // until callers decide: 60 s of traffic (HEALTH.md §3), and its beginning
	members  = 4                // of each service
	deadline = 300 * time.Millisecond
	perEach  = 16 // calls a second of each caller of a service: 4 to each instance
)

// world is a server, an operator, and callers under identities of their own.
type world struct {
	*testing.T
	whole *testing.T // all of it, where T is a part
	s     *harness.Server
	api   *harness.API
	admin adminv1.AdminServiceClient
	who   []*harness.SVID
	envoy []*harness.Envoy // one for each identity
}

// callers is how many identities call.
const callers = 3

func start(t *testing.T) *world {
	t.Helper()
	s := harness.StartServer(t, harness.ServerConfig{})
	w := &world{T: t, whole: t, s: s, api: s.DialAPI(t, s.Operator(t))}
	w.admin = adminv1.NewAdminServiceClient(w.api.Conn)
	w.api.Apply(t, &registryv1.Change{Change: &registryv1.Change_PutProfile{PutProfile: &registryv1.Profile{
		Namespace: "shop", Name: "called", Supplies: []registryv1.EvidenceClass{
			registryv1.EvidenceClass_EVIDENCE_CLASS_SELF, registryv1.EvidenceClass_EVIDENCE_CLASS_CALLERS},
	}}})
	for i := range callers {
		id := s.CA.Mint(t, fmt.Sprintf("/ns/shop/sa/web-%d", i))
		w.who = append(w.who, id)
		w.envoy = append(w.envoy, harness.StartEnvoy(t, harness.EnvoyConfig{XDS: s.XDS, SVID: id, NodeID: fmt.Sprintf("envoy-%d", i), Region: "local", Zone: "a"}))
	}
	for _, e := range w.envoy {
		e.WaitLive(t, starts)
	}
	return w
}

// fleet is a service with its instances, all of which say that they serve.
type fleet struct {
	*world
	host string
	bs   []*harness.Backend
}

// fleet registers a service without a ramp, and waits until callers are given it.
func (w *world) fleet(host string) *fleet {
	w.Helper()
	f := &fleet{world: w, host: host}
	name, ns, _ := strings.Cut(host, ".")
	svc := harness.PutService(host)
	svc.GetPutService().Profile = "called"
	changes := []*registryv1.Change{{Change: &registryv1.Change_PutContract{PutContract: &registryv1.Contract{
		Namespace: ns, Name: name, Ramp: durationpb.New(0),
	}}}, svc}
	for i := range members {
		b := harness.StartBackend(w, fmt.Sprintf("%s-%d", name, i))
		f.bs = append(f.bs, b)
		c := harness.PutBackend(host, b)
		c.GetPutInstance().Identity = "spiffe://test/ns/shop/sa/cast"
		changes = append(changes, c)
	}
	var uids []string
	for _, r := range w.api.Apply(w, changes...)[2:] {
		uids = append(uids, r.GetUid())
	}
	w.serving(uids)
	harness.Eventually(w, starts, host+" is published", func() error {
		v, err := w.api.View(host)
		if n := len(harness.Listed(v, 0)); err == nil && n != members {
			err = fmt.Errorf("with %d members", n)
		}
		return err
	})
	return f
}

// serving has instances say that they serve, until the test ends. A stream that
// breaks is opened again.
func (w *world) serving(uids []string) {
	w.Helper()
	batch := &healthv1.SelfBatch{}
	for i := range uids {
		batch.Instance = append(batch.Instance, uint32(i))
		batch.Status = append(batch.Status, healthv1.SelfStatus_SELF_STATUS_SERVING)
	}
	client := healthv1.NewReportServiceClient(harness.DialTLS(w, w.s.API, w.s.CA.Mint(w, "/ns/shop/sa/cast")))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
			st, err := client.ReportSelf(ctx)
			if err == nil {
				err = st.Send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Bind{Bind: &healthv1.SelfBind{Instances: uids}}})
			}
			for ; err == nil && ctx.Err() == nil; time.Sleep(500 * time.Millisecond) {
				err = st.Send(&healthv1.ReportSelfRequest{Frame: &healthv1.ReportSelfRequest_Batch{Batch: batch}})
			}
		}
	})
	w.Cleanup(func() { cancel(); wg.Wait() })
}

// called has stock clients of the first identities call the service, each at that
// rate: of the kinds given, "grpc-go" and "envoy".
func (f *fleet) called(perSecond float64, kinds ...string) *fleet {
	f.Helper()
	for i, id := range f.who {
		for _, kind := range kinds {
			c := harness.DialPlain(f, f.envoy[i].Outbound.String(), f.host)
			if kind == "grpc-go" {
				c = harness.Dial(f, harness.Bootstrap{Server: f.s.XDS, SVID: id, NodeID: fmt.Sprintf("go-%d", i), Region: "local", Zone: "a"}, f.host)
			}
			c.WaitFor(f, starts)
			harness.StartSteady(f, c, perSecond, deadline)
		}
	}
	return f
}

// why is what the region makes of the service's instances, by label.
func (f *fleet) why() (map[string]*adminv1.InstanceExplanation, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	name, ns, _ := strings.Cut(f.host, ".")
	r, err := f.admin.Explain(ctx, &adminv1.ExplainRequest{Namespace: ns, Name: name})
	all := make(map[string]*adminv1.InstanceExplanation)
	for _, i := range r.GetService().GetInstances() {
		all[i.GetLabel()] = i
	}
	return all, err
}

// callersDecide waits until callers are primary for every instance.
func (f *fleet) callersDecide() {
	f.Helper()
	harness.Eventually(f, warm, f.host+": callers decide", func() error {
		all, err := f.why()
		for label, i := range all {
			if p := i.GetPrimary(); p != registryv1.EvidenceClass_EVIDENCE_CLASS_CALLERS {
				return fmt.Errorf("%s goes by %s: %v", label, p, i.GetEvidence())
			}
		}
		return err
	})
}

// listed waits until exactly the backends given are in the set that callers are
// given, and returns how long that took.
func (f *fleet) listed(within time.Duration, want ...*harness.Backend) time.Duration {
	f.Helper()
	began := time.Now()
	var text []string
	for _, b := range want {
		text = append(text, b.Name)
	}
	harness.Eventually(f, within, fmt.Sprintf("%s lists %v", f.host, text), func() error {
		v, err := f.api.View(f.host)
		if err != nil {
			return err
		}
		got := make(map[string]bool)
		for _, m := range v.GetMembers() {
			if m.GetListed() {
				got[m.GetLabel()] = true
			}
		}
		for _, name := range text {
			if !got[name] || len(got) != len(text) {
				return fmt.Errorf("it lists %v", got)
			}
		}
		return nil
	})
	return time.Since(began)
}

// stays checks for a while that nobody is found out.
func (f *fleet) stays(long time.Duration) {
	f.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if !f.allServe() {
			return
		}
	}
}

// allServe reports whether every instance is eligible now, and says who is not.
func (f *fleet) allServe() bool {
	f.Helper()
	v, err := f.api.View(f.host)
	if err != nil {
		f.Errorf("%s: %v", f.host, err)
		return false
	}
	for _, m := range v.GetMembers() {
		if m.GetState() != viewv1.State_STATE_ELIGIBLE {
			all, _ := f.why()
			f.Errorf("%s: %s is %s: %v", f.host, m.GetLabel(), m.GetState(), all[m.GetLabel()])
			return false
		}
	}
	return true
}
