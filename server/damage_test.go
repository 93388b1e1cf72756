package server

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	adminv1 "github.com/sightlinedev/sightline/proto/sightline/admin/v1"
	registryv1 "github.com/sightlinedev/sightline/proto/sightline/registry/v1"
	"github.com/sightlinedev/sightline/registry"
)

// damage flips a bit in every stored value, the current and the previous one,
// of the rows that match, and says how many values those were.
func damage(t *testing.T, dir string, kind registry.RowKind, part []byte) (n int) {
	t.Helper()
	db, err := pebble.Open(filepath.Join(dir, "store"), &pebble.Options{FormatMajorVersion: pebble.FormatValueSeparation})
	if err != nil {
		t.Fatal(err)
	}
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	bad := make(map[string][]byte)
	for ok := it.First(); ok; ok = it.Next() {
		if k := it.Key(); (k[0] == 'd' || k[0] == 'p') && k[1] == byte(kind) && bytes.Contains(k, part) {
			v := bytes.Clone(it.Value())
			v[len(v)/2] ^= 1
			bad[string(k)] = v
		}
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	for k, v := range bad {
		if err := db.Set([]byte(k), v, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return len(bad)
}

func (r *running) expectCart(when string, want ...string) {
	r.t.Helper()
	got := listed(r.resolve())
	answer, err := r.dig("cart.shop.svc.sightline.test.")
	if !slices.Equal(got, want) || err != nil || len(answer.Answer) != len(want) {
		r.t.Errorf("%s: %v, DNS %v (%v), want %v", when, got, answer, err, want)
	}
}

// TestADamagedServiceRow: a service whose row cannot be read, in neither of its
// two copies, is answered as before; put again it goes on without a gap, and
// its deletion is one.
func TestADamagedServiceRow(t *testing.T) {
	dir := dataDir(t)
	r := start(t, devConfig(dir))
	r.register("10.0.0.1", "10.0.0.2")
	r.eventually("both instances are listed", func() bool { return len(listed(r.resolve())) == 2 })
	version := r.resolve().GetEndpointVersion()
	restart := func() {
		t.Helper()
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if n := damage(t, dir, registry.ServiceRow, []byte("cart")); n != 2 {
			t.Fatalf("%d values were damaged, want a row and its previous value", n)
		}
		r = start(t, devConfig(dir))
	}

	restart()
	r.expectCart("damaged", "10.0.0.1", "10.0.0.2")
	if v := r.resolve().GetEndpointVersion(); v != version {
		t.Errorf("the view that nobody changed moved from %s to %s", version, v)
	}
	if n := strings.Count(r.logs.String(), "SL6003"); n != 1 {
		t.Errorf("%d alarms in the log", n)
	}
	alarms := func() bool {
		status, err := adminv1.NewAdminServiceClient(r.dialAPI(r.operator())).GetStatus(callCtx(t), &adminv1.GetStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(status.String(), "service shop/cart cannot be read")
	}
	if !alarms() {
		t.Error("the status does not tell")
	}
	r.register() // creates it again, with no instance of its own
	r.expectCart("put again", "10.0.0.1", "10.0.0.2")
	if alarms() {
		t.Error("the status tells of it although it was put again")
	}
	r.registerMore("10.0.0.3")
	r.eventually("it goes on", func() bool { return len(listed(r.resolve())) == 3 })

	restart()
	r.expectCart("damaged again", "10.0.0.1", "10.0.0.2", "10.0.0.3")
	op := registryv1.NewRegistryServiceClient(r.dialAPI(r.operator()))
	if _, err := op.DeleteService(callCtx(t), &registryv1.DeleteServiceRequest{Namespace: "shop", Name: "cart"}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the deleted service is gone", func() bool { return r.resolve() == nil })
}

// TestADamagedInstanceRow: a member whose row cannot be read stays, the others
// of its service live on, and once it registers anew it is there once.
func TestADamagedInstanceRow(t *testing.T) {
	dir := dataDir(t)
	r := start(t, devConfig(dir))
	uids := r.register("10.0.0.1", "10.0.0.2")
	r.eventually("both instances are listed", func() bool { return len(listed(r.resolve())) == 2 })
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	uid, err := registry.ParseUID(uids[0])
	if err != nil {
		t.Fatal(err)
	}
	if n := damage(t, dir, registry.InstanceRow, binary.BigEndian.AppendUint64(nil, uint64(uid))); n != 2 {
		t.Fatalf("%d values were damaged", n)
	}
	r = start(t, devConfig(dir))
	r.expectCart("damaged", "10.0.0.1", "10.0.0.2")
	r.registerMore("10.0.0.3")
	r.eventually("its service lives on", func() bool { return len(listed(r.resolve())) == 3 })
	again := r.registerMore("10.0.0.1")
	r.eventually("it is there once, under its new uid", func() bool {
		v := r.resolve()
		return len(v.GetMembers()) == 3 && v.GetMembers()[2].GetUid() == again
	})
	if again == uids[0] {
		t.Errorf("uid %s was used again", again)
	}
}
