package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"go.uber.org/goleak"

	"github.com/sightlinedev/sightline/health"
	"github.com/sightlinedev/sightline/identity"
	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

var (
	other    = registry.Name{Namespace: "shop", Service: "other"}
	checkout = registry.Name{Namespace: "shop", Service: "checkout"}
	start    = time.Unix(1_800_000_000, 0)
)

// open opens a store on fs that is closed with the test, and leaves no
// goroutine behind.
func open(t *testing.T, fs vfs.FS, change func(*Config)) (*Store, Loaded) {
	t.Helper()
	before := goleak.IgnoreCurrent()
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
		goleak.VerifyNone(t, before)
	})
	return s, l
}

func serviceRow(n registry.Name, rev uint64) registry.Row {
	return registry.Row{Key: registry.RowKey{Kind: registry.ServiceRow, Name: n}, Service: &registry.Service{
		Name: n, Ports: []registry.Port{{Name: "grpc", Number: 9090, Protocol: registry.GRPC}},
		Annotations: map[string]string{"a": "b"}, Source: "api", Revision: rev,
	}}
}

func instanceRow(n registry.Name, uid registry.UID, rev uint64) registry.Row {
	return registry.Row{Key: registry.RowKey{Kind: registry.InstanceRow, Name: n, UID: uid}, Instance: &registry.Instance{
		UID: uid, Service: n, Identity: identity.MustParse("spiffe://example.org/ns/shop/sa/checkout"),
		Endpoint: registry.Endpoint{Addr: netip.MustParseAddr("10.0.0.1")}, Weight: 100, Source: "api", Revision: rev,
	}}
}

func contractRow(kind registry.RowKind, n registry.Name, lease time.Duration, rev uint64) registry.Row {
	return registry.Row{Key: registry.RowKey{Kind: kind, Name: n}, Contract: &registry.Contract{
		Name: n, Lease: lease, Identities: []identity.ID{identity.MustParse("spiffe://example.org/ns/a/sa/b"), {}}, Revision: rev,
	}}
}

func profileRow(n registry.Name) registry.Row {
	return registry.Row{Key: registry.RowKey{Kind: registry.ProfileRow, Name: n}, Profile: &registry.Profile{
		Namespace: n.Namespace, Name: n.Service, Supplies: registry.ClassSet(0).With(registry.ClassSelf), Revision: 4,
	}}
}

func countersRow(uid registry.UID, rev uint64) registry.Row {
	return registry.Row{Key: registry.RowKey{Kind: registry.CountersRow}, Counters: &registry.Counters{LastUID: uid, LastRevision: rev}}
}

func deletion(r registry.Row) registry.Row { return registry.Row{Key: r.Key, Delete: true} }

// text shows rows by value, for comparisons.
func text(t *testing.T, rows []registry.Row) string {
	t.Helper()
	var b strings.Builder
	for _, r := range rows {
		v, named := content(r)
		if !named {
			t.Errorf("%s holds %+v", r.Key, v)
		}
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s %s\n", r.Key, j)
	}
	return b.String()
}

func commit(t *testing.T, s *Store, rows ...registry.Row) {
	t.Helper()
	if err := s.Commit(t.Context(), rows, nil); err != nil {
		t.Fatal(err)
	}
}

func TestRowsComeBackAsWritten(t *testing.T) {
	fs := vfs.NewMem()
	s, l := open(t, fs, nil)
	base := uint64(start.Unix()) * idsPerSecond
	if l.Base != base || l.Epoch != uint64(start.Unix()) || l.Next != 1 || l.Reserved != 1+seqBlock {
		t.Fatalf("first start: %+v, want base %d", l, base)
	}
	gone := serviceRow(registry.Name{Namespace: "shop", Service: "gone"}, 5)
	written := []registry.Row{
		serviceRow(checkout, 1), instanceRow(checkout, 8, 2), contractRow(registry.ContractRow, checkout, 25*time.Second, 3),
		contractRow(registry.PreviousContractRow, checkout, 20*time.Second, 2),
		profileRow(registry.Name{Namespace: "shop", Service: "grpc-go"}), countersRow(registry.UID(base+7), base+9),
	}
	commit(t, s, written...)
	commit(t, s, gone)
	commit(t, s, deletion(gone))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, l2 := open(t, fs, nil)
	if got, want := text(t, l2.Rows), text(t, written); got != want || len(l2.Damaged)+len(l2.Alarms) != 0 {
		t.Errorf("read\n%s\nwrote\n%s\n%v %v", got, want, l2.Damaged, l2.Alarms)
	}
	if l2.Epoch != l.Epoch+1 || l2.Base != base+9 || l2.Next != l.Reserved {
		t.Errorf("second start: epoch %d, base %d, next %d", l2.Epoch, l2.Base, l2.Next)
	}
}

func TestARowUnderAnotherKeyIsRefused(t *testing.T) {
	s, _ := open(t, vfs.NewMem(), nil)
	wrong := serviceRow(checkout, 1)
	wrong.Key.Name.Service = "other"
	instance := instanceRow(checkout, 3, 1)
	instance.Key.UID = 4
	for _, r := range []registry.Row{wrong, instance, {Key: registry.RowKey{Kind: registry.ServiceRow, Name: checkout}}, {}} {
		if err := s.Commit(t.Context(), []registry.Row{r}, nil); err == nil {
			t.Errorf("%s was accepted", r.Key)
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
		{"another row's bytes", func(db *pebble.DB, key []byte) error {
			v, err := getCopy(db, rowKey(prefixDesired, instanceRow(other, 5, 2).Key))
			return errors.Join(err, db.Set(key, v, pebble.Sync))
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
			damaged := instanceRow(checkout, uid, 7)
			commit(t, s, serviceRow(checkout, 1), serviceRow(other, 1), damaged, instanceRow(other, 5, 2))
			if err := test.damage(s.opening.db, rowKey(prefixDesired, damaged.Key)); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			_, l := open(t, fs, nil)
			if len(l.Damaged) != 1 || l.Damaged[0].Key != damaged.Key || len(l.Alarms) != 0 || l.Base < uid {
				t.Fatalf("damaged %v, alarms %v, base %d", l.Damaged, l.Alarms, l.Base)
			}
			ix := registry.Load(l.Base, slices.Values(l.Rows), l.Damaged)
			if _, ok := ix.Index.Instance(uid); ok != test.restored || len(ix.Damaged) != 1 {
				t.Errorf("restored %v, damaged %v", ok, ix.Damaged)
			}
			if _, ok := ix.Index.Instance(5); !ok {
				t.Error("the other instance is missing")
			}
			if ix.Index.Counters().LastUID < uid {
				t.Error("the damaged row's uid can be given out again")
			}
		})
	}
}

func TestAForeignKeyIsOneAlarm(t *testing.T) {
	fs := vfs.NewMem()
	s, _ := open(t, fs, nil)
	commit(t, s, serviceRow(checkout, 1))
	for _, k := range []string{"d", "d\x01", "d\x01shop", "d\x02shop\x00checkout\x00", "d\x63a\x00b\x00"} {
		if err := s.opening.db.Set([]byte(k), []byte("x"), pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, l := open(t, fs, nil); len(l.Alarms)+len(l.Damaged) != 5 || len(l.Rows) != 1 {
		t.Errorf("alarms %v, damaged %v, %d rows", l.Alarms, l.Damaged, len(l.Rows))
	}
}

func TestDamagedCounters(t *testing.T) {
	fs := vfs.NewMem()
	s, l := open(t, fs, nil)
	s.PutView(publication(views.Version{Epoch: l.Epoch, Seq: 70_000}, nil, 1))
	for round, damaged := range [][][]byte{{numberKeys[0]}, {numberKeys[0], numberKeys[1]}} {
		before := l
		for _, k := range damaged {
			if err := s.opening.db.Set(k, []byte("x"), pebble.Sync); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s, l = open(t, fs, nil)
		if len(l.Alarms) != 1 || l.Epoch < before.Epoch || round == 0 && l.Next != before.Reserved || round == 1 && l.Next <= 70_000 {
			t.Errorf("round %d: %+v after %+v", round, l, before)
		}
	}
}

func TestVersionBlocks(t *testing.T) {
	fs := vfs.NewMem()
	end := make(chan uint64, 1)
	var before Loaded
	for range 3 {
		s, l := open(t, fs, nil)
		if l.Next < before.Reserved || l.Epoch <= before.Epoch {
			t.Fatalf("start %+v after %+v", l, before)
		}
		for range 2 {
			s.Refill(func(e uint64) { end <- e })
			e := <-end
			if e != l.Reserved+seqBlock {
				t.Fatalf("reserved %d after %d", e, l.Reserved)
			}
			l.Reserved = e
		}
		before = l
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
	err := s.Commit(t.Context(), []registry.Row{serviceRow(checkout, 1)}, nil)
	if StateOf(err) != Closed {
		t.Errorf("commit after close: %v", err)
	}
	if _, _, err := s.LatestViews(t.Context()); StateOf(err) != Closed {
		t.Errorf("read after close: %v", err)
	}
	s.PutView(publication(views.Version{Epoch: s.epoch, Seq: 1}, nil, 1)) // dropped, not blocked
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
	if found, _, _ = s.Transitions(t.Context(), TransitionFilter{Until: start.Add(2 * time.Second), Limit: 1}); len(found) != 1 || !found[0].At.Equal(start.Add(time.Second)) {
		t.Errorf("transitions before the third: %+v", found)
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
		err := s.Commit(ctx, []registry.Row{serviceRow(checkout, 1)}, nil)
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
