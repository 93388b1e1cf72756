package xds

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sightlinedev/sightline/interop/harness"
	"github.com/sightlinedev/sightline/interop/harness/rawxds"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
)

// The estate of C43, at its full size.
const (
	services = 5000
	crowded  = 700
	crowd    = 100
	batch    = 1000 // changes in one Apply, at most
)

func hostName(i int) string { return fmt.Sprintf("service-%04d.estate", i) }

// load applies changes in batches.
func (w *world) load(changes []*registryv1.Change) {
	w.Helper()
	for part := range slices.Chunk(changes, batch) {
		w.api.Apply(w, part...)
	}
}

// C43: four mebibytes, both ways.
func TestC43FourMebibytes(t *testing.T) {
	w := start(t)
	changes := []*registryv1.Change{harness.WithoutRamp("whole.estate")}
	var names []string
	for i := range services {
		names = append(names, hostName(i))
		svc := harness.PutService(hostName(i))
		svc.GetPutService().Contract = "whole"
		changes = append(changes, svc)
	}
	for i := range crowded {
		for k := range crowd {
			changes = append(changes, harness.PutInstance(hostName(i), fmt.Sprintf("i-%03d", k), at(i, k)))
		}
	}
	began := time.Now()
	w.load(changes)
	w.published(hostName(services-1), 0)
	w.published(hostName(crowded-1), crowd)
	t.Logf("%d changes applied and published in %s", len(changes), time.Since(began).Round(time.Millisecond))

	versions := w.takesEverything(names)
	w.offersSixtyThousand(versions)
	w.oneTargetStaysSmall()
	w.tooManyInOneService()
}

// takesEverything is step 1: with gRPC's default options a client that takes all
// gets each resource once, in parts that it can receive.
func (w *world) takesEverything(names []string) map[string]string {
	w.Helper()
	c := w.delta(nil)
	w.ok(c.Subscribe(rawxds.CDS, "*"))
	w.ok(c.Await(time.Minute, func() bool { return len(c.Held(rawxds.CDS)) == len(names) }))
	w.ok(c.Subscribe(rawxds.EDS, names...))
	w.ok(c.Await(time.Minute, func() bool { return len(c.Held(rawxds.EDS)) == len(names) }))
	for _, typ := range []string{rawxds.CDS, rawxds.EDS} {
		size, largest := 0, 0
		for _, r := range c.Responses(typ) {
			size, largest = size+r.Size, max(largest, r.Size)
		}
		sent := sentOf(c, typ)
		w.Logf("%s: %d resources in %d responses of %d bytes, the largest %d", typ, len(sent), len(c.Responses(typ)), size, largest)
		w.same(typ, sent, names...)
		if largest > rawxds.MaxResponse {
			w.Errorf("a response of %d bytes", largest)
		}
		if typ == rawxds.EDS && size <= rawxds.MaxResponse {
			w.Errorf("only %d bytes of assignments: this shows nothing", size)
		}
	}
	versions := c.Versions(rawxds.CDS)
	c.Close()
	return versions
}

// offersSixtyThousand is step 2: a request above 4 MiB is taken, and answered by
// what does not exist (any more).
func (w *world) offersSixtyThousand(versions map[string]string) {
	w.Helper()
	const ghosts = 60000
	held := len(versions)
	size := 0
	for i := range ghosts {
		name := fmt.Sprintf("%s-%05d.%s:8443", strings.Repeat("g", 50), i, strings.Repeat("n", 30))
		versions[name] = "1700000000.123456-abcdefgh"
		size += len(name) + len(versions[name])
	}
	if size <= rawxds.MaxResponse {
		w.Fatalf("a request of %d bytes shows nothing", size)
	}
	c := w.delta(nil)
	w.ok(c.Resume(rawxds.CDS, versions, "*"))
	w.ok(c.Await(time.Minute, func() bool { return len(removedOf(c, rawxds.CDS)) >= ghosts }))
	if got := len(removedOf(c, rawxds.CDS)); got != ghosts {
		w.Errorf("%d names removed, of %d", got, ghosts)
	}
	if got := sentOf(c, rawxds.CDS); len(got) > 0 {
		w.Errorf("%d of %d current Clusters were sent again", len(got), held)
	}
	w.ok(c.Subscribe(rawxds.EDS, hostName(0)))
	w.ok(c.Await(budget, func() bool { return len(c.Held(rawxds.EDS)) == 1 }))
	c.Close()
}

// oneTargetStaysSmall is step 3: a proxyless client that dials one service is
// sent that service alone.
func (w *world) oneTargetStaysSmall() {
	w.Helper()
	one := harness.StartBackend(w, "one")
	w.api.Apply(w, harness.PutService("checkout.shop"), harness.PutBackend("checkout.shop", one))
	addr, received := meter(w, w.s.XDS)
	c := harness.Dial(w, harness.Bootstrap{Server: addr, SVID: w.web, NodeID: "go", Zone: "a"}, "checkout.shop")
	c.WaitOnly(w, starts, "one")
	if n := received.Load(); n == 0 || n >= 64<<10 {
		w.Errorf("a client of one service received %d bytes", n)
	}
	c.Close()
}

// tooManyInOneService is step 5: an assignment cannot be split, so the service
// that outgrows the limit is refused by name, and the others go on.
func (w *world) tooManyInOneService() {
	w.Helper()
	other := w.delta(nil)
	w.ok(other.Subscribe(rawxds.EDS, "quiet.shop"))
	w.api.Apply(w, harness.WithoutRamp("quiet.shop"), harness.PutService("quiet.shop"), harness.PutInstance("quiet.shop", "a", at(0xfe00, 0)))
	w.holds(other, "quiet.shop", budget, at(0xfe00, 0))

	w.api.Apply(w, harness.WithoutRamp("huge.shop"), harness.PutService("huge.shop"))
	var refused error
	for from := 0; from < 60000 && refused == nil; from += batch {
		refused = w.hugeBatch(from)
	}
	s := status.Convert(refused)
	if c := s.Code(); c != codes.ResourceExhausted && c != codes.InvalidArgument && c != codes.FailedPrecondition {
		w.Errorf("60,000 instances of one service: %v", refused)
	}
	if !strings.Contains(s.Message(), "10000") && !strings.Contains(s.Message(), "10,000") {
		w.Errorf("the refusal does not name the limit: %s", s.Message())
	}
	w.Logf("refused: %s", s.Message())
	w.api.Apply(w, harness.PutInstance("quiet.shop", "b", at(0xfe00, 1)))
	w.holds(other, "quiet.shop", budget, at(0xfe00, 0), at(0xfe00, 1))
}

// hugeBatch registers a batch of huge.shop. A write that a busy disk did not
// confirm in time is sent again, as its status says.
func (w *world) hugeBatch(from int) error {
	var changes []*registryv1.Change
	for i := from; i < from+batch; i++ {
		addr := netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
		changes = append(changes, harness.PutInstance("huge.shop", fmt.Sprintf("i-%05d", i), netip.AddrPortFrom(addr, 8443)))
	}
	for began := time.Now(); ; {
		_, err := w.api.TryApply(changes...)
		if status.Code(err) != codes.Unavailable || time.Since(began) > starts {
			return err
		}
	}
}

// meter forwards connections to an address, and counts the bytes that come back.
func meter(w *world, to string) (addr string, received *atomic.Int64) {
	w.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.ok(err)
	received = new(atomic.Int64)
	ctx, cancel := context.WithCancel(context.Background())
	w.Cleanup(func() { cancel(); l.Close() })
	go func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				down.Close()
				continue
			}
			context.AfterFunc(ctx, func() { down.Close(); up.Close() })
			go func() { _, _ = io.Copy(up, down); up.Close() }()
			go func() { _, _ = io.Copy(counting{down, received}, up); down.Close() }()
		}
	}()
	return l.Addr().String(), received
}

type counting struct {
	io.Writer
	n *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(int64(n))
	return n, err
}
