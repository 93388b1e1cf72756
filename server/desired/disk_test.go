package desired

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errFull   = errors.New("no space left on device")
	errBroken = errors.New("input/output error")
	checkout  = registry.Name{Namespace: "shop", Service: "checkout"}
)

const base = 1000

// disk is a store whose commits can be made to hang, and that can be full or broken.
type disk struct {
	mu      sync.Mutex
	rows    map[registry.RowKey]registry.Row
	records []Record
	commits int
	hang    chan struct{} // commits wait for it to be closed
	refuse  error
	cut     error // the next commit fails with it, and writes nothing
}

func newDisk() *disk { return &disk{rows: make(map[registry.RowKey]registry.Row)} }

func (d *disk) commit(ctx context.Context, rows []registry.Row, records []Record) error {
	d.mu.Lock()
	hang := d.hang
	d.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return d.refuse
	}
	if err := d.cut; err != nil {
		d.cut = nil
		return err
	}
	for _, r := range rows {
		if r.Delete {
			delete(d.rows, r.Key)
			continue
		}
		d.rows[r.Key] = r
	}
	d.records = append(d.records, records...)
	d.commits++
	return nil
}

func (d *disk) refusal() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refuse
}

// stall makes commits hang; the function that it returns ends that.
func (d *disk) stall() (resume func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := make(chan struct{})
	d.hang = c
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.hang = nil
		close(c)
	}
}

func (d *disk) set(refuse error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = refuse
}

// cutNext makes the next commit fail, or nothing when err is nil.
func (d *disk) cutNext(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = err
}

func (d *disk) has(k registry.RowKey) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.rows[k]
	return ok
}

// load is what a start would read.
func (d *disk) load() registry.Loaded {
	d.mu.Lock()
	defer d.mu.Unlock()
	var rows []registry.Row
	for _, r := range d.rows {
		rows = append(rows, r)
	}
	return registry.Load(base, slices.Values(rows), nil)
}

// told collects what the shards hear.
type told struct {
	mu      sync.Mutex
	changes []registry.Change
	live    map[registry.UID]bool
}

func (s *told) tell(c registry.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes = append(s.changes, c)
	for _, i := range c.Instances {
		if i.Row == nil {
			delete(s.live, i.UID)
		} else {
			s.live[i.UID] = true
		}
	}
}

func (s *told) has(u registry.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[u]
}

// run starts a Writer on the disk; it ends with the test's context or stop.
func run(t *testing.T, d *disk) (w *Writer, shards *told, stop func()) {
	t.Helper()
	shards = &told{live: make(map[registry.UID]bool)}
	w = New(Config{
		Loaded: d.load(), Commit: d.commit, Refusal: d.refusal, Tell: shards.tell,
		KindOf: func(err error) Kind {
			if errors.Is(err, errFull) {
				return Full
			}
			return Failing
		},
	})
	w.Full(shards.tell)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	return w, shards, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func putService(n registry.Name) registry.Mutation {
	return registry.PutService{Row: registry.Service{
		Name: n, Ports: []registry.Port{{Name: "grpc", Number: 9090, Protocol: registry.GRPC}}, Source: "api",
	}}
}

func putInstance(n registry.Name, label, addr string) registry.Mutation {
	return registry.PutInstance{Row: registry.Instance{
		Service: n, Label: label, Identity: identity.MustParse("spiffe://example.org/ns/shop/sa/" + n.Service),
		Endpoint: registry.Endpoint{Addr: netip.MustParseAddr(addr)}, Proof: registry.ByAuthority, Source: "api",
	}}
}

func remove(uid registry.UID) registry.Mutation {
	return registry.RemoveInstance{UID: uid, Service: checkout, By: "api", Removal: registry.Deregistered}
}

func write(t *testing.T, w *Writer, ms ...registry.Mutation) Result {
	t.Helper()
	r, err := w.Write(t.Context(), Request{Mutations: ms})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func kindOf(t *testing.T, err error) Kind {
	t.Helper()
	var u *Unavailable
	if !errors.As(err, &u) {
		t.Fatalf("error is %v, want an Unavailable", err)
	}
	return u.Kind
}

func instanceKey(u registry.UID) registry.RowKey {
	return registry.RowKey{Kind: registry.InstanceRow, Name: checkout, UID: u}
}
