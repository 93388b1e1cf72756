package store

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

var (
	checkout = registry.Name{Namespace: "shop", Service: "checkout"}
	start    = time.Unix(1_800_000_000, 0)
)

// open opens a store on fs that is closed with the test.
func open(t *testing.T, fs vfs.FS, change func(*Config)) (*Store, Loaded) {
	t.Helper()
	cfg := Config{Dir: "data", FS: fs, Now: start}
	if change != nil {
		change(&cfg)
	}
	s, l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, l
}

func serviceRow(n registry.Name, rev uint64) Row {
	return Row{Kind: ServiceRow, Name: n, Value: &registry.Service{
		Name: n, Ports: []registry.Port{{Name: "grpc", Number: 9090, Protocol: registry.GRPC}},
		Annotations: map[string]string{"a": "b"}, Source: "api", Revision: rev,
	}}
}

func instanceRow(n registry.Name, uid registry.UID, rev uint64) Row {
	return Row{Kind: InstanceRow, Name: n, UID: uid, Value: &registry.Instance{
		UID: uid, Service: n, Identity: identity.MustParse("spiffe://example.org/ns/shop/sa/checkout"),
		Endpoint: registry.Endpoint{Addr: netip.MustParseAddr("10.0.0.1")}, Weight: 100, Source: "api", Revision: rev,
	}}
}

func contractRow(n registry.Name, lease time.Duration, rev uint64) Row {
	return Row{Kind: ContractRow, Name: n, Value: &registry.Contract{
		Name: n, Lease: lease, Identities: []identity.ID{identity.MustParse("spiffe://example.org/ns/a/sa/b"), {}}, Revision: rev,
	}}
}

func commit(t *testing.T, s *Store, rows ...Row) {
	t.Helper()
	if err := s.Commit(t.Context(), rows, nil); err != nil {
		t.Fatal(err)
	}
}

func TestRowsComeBackAsWritten(t *testing.T) {
	fs := vfs.NewMem()
	s, l := open(t, fs, nil)
	if want := registry.UID(uint64(start.Unix())*uidsPerSecond + 1); l.NextUID != want || l.Epoch != uint64(start.Unix()) {
		t.Fatalf("first start: next uid %d, epoch %d, want uid %d", l.NextUID, l.Epoch, want)
	}
	profile := Row{Kind: ProfileRow, Name: registry.Name{Namespace: "shop", Service: "grpc-go"}, Value: &registry.Profile{
		Namespace: "shop", Name: "grpc-go", Supplies: registry.ClassSet(0).With(registry.ClassSelf), Revision: 4,
	}}
	written := []Row{serviceRow(checkout, 1), instanceRow(checkout, l.NextUID, 2), contractRow(checkout, 25*time.Second, 3), profile}
	commit(t, s, written...)
	commit(t, s, serviceRow(registry.Name{Namespace: "shop", Service: "gone"}, 5))
	commit(t, s, Row{Kind: ServiceRow, Name: registry.Name{Namespace: "shop", Service: "gone"}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, l2 := open(t, fs, nil)
	got := fmt.Sprintf("%+v %+v %+v %+v", *l2.Services[0], *l2.Instances[0], *l2.Contracts[0], *l2.Profiles[0])
	want := fmt.Sprintf("%+v %+v %+v %+v", *written[0].Value.(*registry.Service), *written[1].Value.(*registry.Instance),
		*written[2].Value.(*registry.Contract), *written[3].Value.(*registry.Profile))
	if got != want || len(l2.Services) != 1 || len(l2.Alarms) != 0 {
		t.Errorf("read\n%s\nwrote\n%s\nalarms %v", got, want, l2.Alarms)
	}
	if l2.Epoch != l.Epoch+1 || l2.Revision != 5 || l2.NextUID != l.NextUID+1 {
		t.Errorf("second start: epoch %d, revision %d, next uid %d", l2.Epoch, l2.Revision, l2.NextUID)
	}
}

func TestARowUnderAnotherKeyIsRefused(t *testing.T) {
	s, _ := open(t, vfs.NewMem(), nil)
	wrong := serviceRow(checkout, 1)
	wrong.Name.Service = "other"
	for _, r := range []Row{wrong, {Kind: InstanceRow, Name: checkout, Value: &registry.Service{Name: checkout}}, {Kind: ServiceRow, Name: checkout, Value: "text"}} {
		if err := s.Commit(t.Context(), []Row{r}, nil); err == nil {
			t.Errorf("%s was accepted", r)
		}
	}
}

// TestDamagedRows is B9: whatever a row's bytes are, it is one alarm, its
// previous good value speaks, its uid stays reserved, and others load.
func TestDamagedRows(t *testing.T) {
	for _, test := range []struct {
		name     string
		damage   func(db *pebble.DB, key []byte) error
		restored bool
	}{
		{"flipped bit", func(db *pebble.DB, key []byte) error {
			v, err := getCopy(db, key)
			v[len(v)/2] ^= 4
			return errors.Join(err, db.Set(key, v, pebble.Sync))
		}, true},
		{"cut short", func(db *pebble.DB, key []byte) error { return db.Set(key, []byte{1, 2}, pebble.Sync) }, true},
		{"a newer format", func(db *pebble.DB, key []byte) error {
			v, err := getCopy(db, key)
			v[0] = 9
			return errors.Join(err, db.Set(key, v, pebble.Sync))
		}, true},
		{"good checksum, not JSON", func(db *pebble.DB, key []byte) error {
			return db.Set(key, seal(key, []byte("{")), pebble.Sync)
		}, true},
		{"both copies", func(db *pebble.DB, key []byte) error {
			previous := append([]byte{prefixPrevious}, key[1:]...)
			return errors.Join(db.Set(key, nil, pebble.Sync), db.Set(previous, nil, pebble.Sync))
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			fs := vfs.NewMem()
			s, _ := open(t, fs, nil)
			const uid = 1 << 60
			other := registry.Name{Namespace: "shop", Service: "other"}
			commit(t, s, serviceRow(checkout, 1), serviceRow(other, 1), instanceRow(checkout, uid, 7), instanceRow(other, 5, 2),
				contractRow(checkout, 10*time.Second, 1))
			commit(t, s, contractRow(checkout, 20*time.Second, 2))
			for _, r := range []Row{{Kind: InstanceRow, Name: checkout, UID: uid}, {Kind: ContractRow, Name: checkout}} {
				if err := test.damage(s.opening.db, rowKey(prefixDesired, r)); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			_, l := open(t, fs, nil)
			if len(l.Alarms) != 2 || len(l.Services) != 2 || l.NextUID != uid+1 {
				t.Fatalf("alarms %v, services %d, next uid %d", l.Alarms, len(l.Services), l.NextUID)
			}
			for _, a := range l.Alarms {
				if a.Restored != test.restored || a.Row.Name != checkout || !strings.Contains(a.Error(), "shop/checkout") {
					t.Errorf("alarm %v: restored %v, row %v", a, a.Restored, a.Row)
				}
			}
			switch {
			case !test.restored && len(l.Instances)+len(l.Contracts) != 1:
				t.Errorf("%d instances and %d contracts", len(l.Instances), len(l.Contracts))
			case test.restored && (len(l.Instances) != 2 || l.Contracts[0].Lease != 10*time.Second):
				t.Errorf("%d instances, lease %v: want the previous contract", len(l.Instances), l.Contracts[0].Lease)
			}
		})
	}
}

func TestDamagedCounters(t *testing.T) {
	fs := vfs.NewMem()
	s, _ := open(t, fs, nil)
	s.PutView(publication(views.Version{Epoch: s.Epoch(), Seq: 70_000}, nil, 1))
	for round, damaged := range [][][]byte{{numberKeys[0]}, {numberKeys[0], numberKeys[1]}} {
		epoch, reserved := s.Epoch(), s.Reserved()
		for _, k := range damaged {
			if err := s.opening.db.Set(k, []byte("x"), pebble.Sync); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		var l Loaded
		s, l = open(t, fs, nil)
		if len(l.Alarms) != 1 || l.Epoch < epoch || round == 0 && l.Seq != reserved || round == 1 && l.Seq < 70_000 {
			t.Errorf("round %d: alarms %v, epoch %d after %d, seq %d after %d", round, l.Alarms, l.Epoch, epoch, l.Seq, reserved)
		}
	}
}

func TestNumbersNeverWaitAndNeverRepeat(t *testing.T) {
	fs := vfs.NewMem()
	var last, epoch uint64
	for range 3 {
		s, l := open(t, fs, nil)
		if l.Seq < last || l.Epoch <= epoch {
			t.Fatalf("start at %d.%d after %d.%d", l.Epoch, l.Seq, epoch, last)
		}
		for range 2*seqBlock + 10 {
			n := s.NextSeq()
			if n <= last {
				t.Fatalf("%d after %d", n, last)
			}
			last = n
		}
		commit(t, s, serviceRow(checkout, 1)) // a group always leaves half a block ahead
		if s.Reserved() < last+seqBlock/2 {
			t.Fatalf("reserved %d, handed out %d", s.Reserved(), last)
		}
		epoch = l.Epoch
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnotherProcessIsRefused(t *testing.T) {
	fs := vfs.NewMem()
	open(t, fs, nil)
	if _, _, err := Open(Config{Dir: "data", FS: fs, Now: start}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("second opening: %v", err)
	}
}

func TestCloseTwiceAndWritesAfterwards(t *testing.T) {
	s, _ := open(t, vfs.NewMem(), nil)
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	err := s.Commit(t.Context(), []Row{serviceRow(checkout, 1)}, nil)
	if StateOf(err) != Closed {
		t.Errorf("commit after close: %v", err)
	}
	if _, _, err := s.LatestViews(t.Context()); StateOf(err) != Closed {
		t.Errorf("read after close: %v", err)
	}
	s.PutView(publication(views.Version{Epoch: 1, Seq: 1}, nil, 1)) // dropped, not blocked
}

func TestLogs(t *testing.T) {
	fs := vfs.NewMem()
	s, _ := open(t, fs, nil)
	rec := Record{At: start, Actor: "spiffe://example.org/sightline/operator/ann", Action: "DeleteService", Target: "shop/checkout", Allowed: true}
	if err := s.Commit(t.Context(), nil, []Record{rec, rec}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		s.AppendTransition(Transition{At: start.Add(time.Duration(i) * time.Second), Name: checkout, UID: registry.UID(i % 2), To: health.Ineligible, Rule: health.R2})
	}
	s.AppendAudit(rec)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, fs, nil)
	if err := s.Commit(t.Context(), nil, []Record{rec}); err != nil {
		t.Fatal(err)
	}
	records, _, err := s.Audit(t.Context(), 2, 10)
	if err != nil || len(records) != 3 || records[0].Seq != 2 || records[2].Seq != 4 || records[0].Actor != rec.Actor {
		t.Errorf("audit %+v, %v", records, err)
	}
	found, _, err := s.Transitions(t.Context(), TransitionFilter{Name: checkout, UID: 0, Since: start.Add(time.Second)})
	if err != nil || len(found) != 2 || !found[0].At.Equal(start.Add(2*time.Second)) || found[0].Rule != health.R2 {
		t.Errorf("transitions %+v, %v", found, err)
	}
	if found, _, _ = s.Transitions(t.Context(), TransitionFilter{UID: 1}); len(found) != 1 {
		t.Errorf("transitions of one instance: %+v", found)
	}
}

func TestCheckpoints(t *testing.T) {
	fs := vfs.NewMem()
	s, _ := open(t, fs, nil)
	s.SaveCheckpoint(checkout, []byte("memory"))
	s.SaveCheckpoint(registry.Name{}, []byte("region"))
	s.SaveCheckpoint(registry.Name{Namespace: "a", Service: "b"}, []byte("x"))
	s.SaveCheckpoint(registry.Name{Namespace: "a", Service: "b"}, nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, fs, nil)
	key := nameKey(prefixCheckpoint, registry.Name{Namespace: "bad", Service: "row"})
	if err := s.opening.db.Set(key, []byte("xxxxxxxxx"), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	saved, damaged, err := s.LoadCheckpoints(t.Context())
	if err != nil || damaged != 1 || len(saved) != 2 || string(saved[checkout]) != "memory" || string(saved[registry.Name{}]) != "region" {
		t.Errorf("checkpoints %q, %d damaged, %v", saved, damaged, err)
	}
}

func TestCommitEndsWithItsContext(t *testing.T) {
	s, _ := open(t, vfs.NewMem(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		err := s.Commit(ctx, []Row{serviceRow(checkout, 1)}, nil)
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

func publication(v views.Version, old *views.View, members int) views.Publication {
	view := &views.View{Name: checkout, Endpoint: v, Config: v, PublishedAt: start.Add(time.Duration(v.Seq) * time.Second)}
	for i := range members {
		view.Members = append(view.Members, &views.Member{UID: registry.UID(i + 1), Listed: true, Evidence: views.Evidence{Rule: "R7"}})
	}
	view.EndpointHash[0] = byte(v.Seq)
	return views.Publication{Version: v, Name: checkout, Old: old, New: view, Lane: views.Additions, Kinds: views.Admit}
}
