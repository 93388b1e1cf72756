package registry

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	resolvev1 "github.com/sightlinedev/sightline/proto/sightline/resolve/v1"
	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

// Outside its own namespace a workload sees what the policy grants, and what it
// may not see looks on every surface like what does not exist.
func TestForbiddenLooksUnknown(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "sightline.yaml")
	grant := "policy:\n  resolve:\n  - {caller: spiffe://test/ns/web/sa/front, callee: shop/orders}\n"
	if err := os.WriteFile(config, []byte(grant), 0o600); err != nil {
		t.Fatal(err)
	}
	w := start(t, harness.ServerConfig{Command: "server", Args: []string{"--config", config}})
	for i, host := range []string{"orders.shop", "ledger.shop"} {
		w.api.Apply(t, harness.PutService(host), harness.PutInstance(host, "a", at(i, 0)))
		w.lists(host, starts, at(i, 0))
	}
	w.sees("/ns/shop/sa/web", "orders.shop", "ledger.shop") // their own namespace
	w.sees("/ns/web/sa/front", "orders.shop")               // granted
	w.sees("/ns/web/sa/other")
	w.sees("/ns/shopping/sa/web") // a name that merely begins alike
}

// sees checks that an identity sees exactly the services given, on each surface.
func (w *world) sees(path string, visible ...string) {
	w.Helper()
	who := w.s.CA.Mint(w, path)
	api := w.s.DialAPI(w, who)
	d, err := rawxds.Delta(context.Background(), w.s.DialXDS(w, who), rawxds.Node("d", "envoy", "", ""), nil)
	w.ok(err)
	w.lasting(d)
	s, err := rawxds.Sotw(context.Background(), w.s.DialXDS(w, who), rawxds.Node("s", "gRPC Go", "", ""), nil)
	w.ok(err)
	w.lasting(s)
	all := []string{"orders.shop", "ledger.shop", "ghost.shop"}
	w.ok(d.Subscribe(rawxds.CDS, "*"))
	w.ok(d.Subscribe(rawxds.EDS, all...))
	w.ok(s.Ask(rawxds.EDS, all...))
	settled := func() bool {
		removed := 0
		for _, r := range d.Responses(rawxds.EDS) {
			removed += len(r.Removed)
		}
		return len(d.Held(rawxds.EDS)) == len(visible) && removed == len(all)-len(visible) &&
			len(d.Responses(rawxds.CDS)) > 0 && len(s.Held(rawxds.EDS)) == len(visible)
	}
	for _, c := range []*rawxds.Client{d, s} {
		if err := c.Await(budget, settled); err != nil {
			w.Fatalf("%s: %v: delta holds %d, state of the world %d, of %v", path, err, len(d.Held(rawxds.EDS)), len(s.Held(rawxds.EDS)), visible)
		}
	}
	unknown := w.resolveError(api, "ghost.shop")
	for _, host := range all {
		may := slices.Contains(visible, host)
		_, cluster := d.Held(rawxds.CDS)[host]
		_, assignment := d.Held(rawxds.EDS)[host]
		if cluster != may || assignment != may {
			w.Errorf("%s, %s: Cluster %t, assignment %t", path, host, cluster, assignment)
		}
		if may {
			if _, err := api.View(host); err != nil {
				w.Errorf("%s, %s: %v", path, host, err)
			}
			continue
		}
		if got := w.resolveError(api, host); strings.ReplaceAll(got, strings.Split(host, ".")[0], "NAME") != strings.ReplaceAll(unknown, "ghost", "NAME") {
			w.Errorf("%s, %s: %q, and for a name that does not exist: %q", path, host, got, unknown)
		}
	}
	w.watches(api, visible)
}

// resolveError is the whole text of the refusal of a Resolve.
func (w *world) resolveError(api *harness.API, host string) string {
	w.Helper()
	name, ns, _ := strings.Cut(host, ".")
	ctx, cancel := context.WithTimeout(context.Background(), starts)
	defer cancel()
	_, err := api.Resolver.Resolve(ctx, &resolvev1.ResolveRequest{Namespace: ns, Name: name})
	if status.Code(err) != codes.NotFound {
		w.Errorf("Resolve of %s: %v", host, err)
	}
	return status.Convert(err).String()
}

// watches reads a watch of everything up to the end of its snapshot.
func (w *world) watches(api *harness.API, visible []string) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	st, err := viewv1.NewViewServiceClient(api.Conn).Watch(ctx)
	w.ok(err)
	w.ok(st.Send(&viewv1.WatchRequest{Frame: &viewv1.WatchRequest_Filter{Filter: &viewv1.Filter{}}}))
	var got []string
	for {
		r, err := st.Recv()
		w.ok(err)
		if v := r.GetView(); v != nil {
			got = append(got, v.GetName()+"."+v.GetNamespace())
		}
		if r.GetBookmark().GetSnapshotComplete() {
			break
		}
	}
	slices.Sort(got)
	want := slices.Clone(visible)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.Errorf("Watch: %v, want %v", got, want)
	}
}
