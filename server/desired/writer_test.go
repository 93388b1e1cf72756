package desired

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/reconcile"
)

func TestAWriteIsDurableBeforeItIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		w, shards, stop := run(t, d)
		defer stop()
		r := write(t, w, putService(checkout), putInstance(checkout, "a", "10.0.0.1"))
		uid := r.Outcomes[1].UID
		if !d.has(instanceKey(uid)) || !shards.has(uid) || r.Revision == 0 {
			t.Errorf("uid %s: on disk %v, told %v, revision %d", uid, d.has(instanceKey(uid)), shards.has(uid), r.Revision)
		}
		if i, ok := w.Lookup(uid); !ok || i.Service != checkout || w.Directory().Len() != 1 {
			t.Errorf("directory: %+v %v", i, ok)
		}
		commits := d.commits
		write(t, w, putService(checkout)) // the state already is as wanted
		if d.commits != commits {
			t.Error("a write that changes nothing went to the disk")
		}
	})
}

func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		w, _, stop := run(t, d)
		defer stop()
		write(t, w, putService(checkout))
		for _, ms := range [][]registry.Mutation{
			{putInstance(registry.Name{Namespace: "shop", Service: "none"}, "a", "10.0.0.1")},
			{remove(77)},
		} {
			records := len(d.records)
			_, err := w.Write(t.Context(), Request{Mutations: ms, Audit: &Record{Actor: "operator", Action: "Apply"}})
			var item *registry.ItemError
			if !errors.As(err, &item) {
				t.Fatalf("%v is not about a change", err)
			}
			if len(d.records) != records+1 || d.records[records].Allowed || d.records[records].Reason == "" {
				t.Errorf("the refused attempt is not on the disk: %+v", d.records[records:])
			}
		}
		r, err := w.Write(t.Context(), Request{Mutations: []registry.Mutation{putInstance(checkout, "a", "10.0.0.1")}, ValidateOnly: true})
		if err != nil || !r.Outcomes[0].Created || w.Directory().Len() != 0 {
			t.Errorf("validate only: %+v %v, %d instances", r, err, w.Directory().Len())
		}
	})
}

// TestHungDisk: nobody waits longer than a second, what was asked of the disk
// is applied when it answers, and what was only queued is not.
func TestHungDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		w, shards, stop := run(t, d)
		defer stop()
		write(t, w, putService(checkout))
		resume := d.stall()
		began := time.Now()
		_, err := w.Write(t.Context(), Request{Mutations: []registry.Mutation{putInstance(checkout, "asked", "10.0.0.1")}})
		if kindOf(t, err) != Hung || time.Since(began) != time.Second {
			t.Errorf("answered %v after %s", err, time.Since(began))
		}
		if _, err = w.Write(t.Context(), Request{Mutations: []registry.Mutation{putInstance(checkout, "queued", "10.0.0.2")}}); kindOf(t, err) != Hung {
			t.Errorf("queued: %v", err)
		}
		if err := w.Record(t.Context(), Record{Action: "Override"}); kindOf(t, err) != Hung {
			t.Errorf("record: %v", err)
		}
		resume()
		synctest.Wait()
		w.Read(func(ix *registry.Index) {
			asked, ok := ix.InstanceByLabel(checkout, "asked")
			if _, queued := ix.InstanceByLabel(checkout, "queued"); !ok || queued || !shards.has(asked.UID) {
				t.Errorf("asked %v, queued %v", ok, queued)
			}
		})
		if len(d.records) != 1 {
			t.Errorf("records %+v", d.records)
		}
	})
}

// TestRemovalDuringAHang: it leaves the views at once, is acknowledged only
// when it is durable, and a retry waits for the same.
func TestRemovalDuringAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		w, shards, stop := run(t, d)
		defer stop()
		uid := write(t, w, putService(checkout), putInstance(checkout, "a", "10.0.0.1")).Outcomes[1].UID
		resume := d.stall()
		began := time.Now()
		go func() {
			time.Sleep(time.Millisecond)
			if shards.has(uid) || !d.has(instanceKey(uid)) {
				t.Error("the removal waits for the disk")
			}
		}()
		_, err := w.Write(t.Context(), Request{Mutations: []registry.Mutation{remove(uid)}})
		var u *Unavailable
		if !errors.As(err, &u) || u.Kind != Hung || !u.Removed || time.Since(began) != time.Second {
			t.Fatalf("answered %v after %s", err, time.Since(began))
		}
		if i, ok := w.Leaving(uid); !ok || i.Label != "a" {
			t.Errorf("leaving: %+v %v", i, ok)
		}
		if i, ok := w.LeavingLabel(checkout, "a"); !ok || i.UID != uid {
			t.Errorf("leaving by its label: %+v %v", i, ok)
		}
		if _, ok := w.LeavingLabel(checkout, ""); ok {
			t.Error("no label is somebody's")
		}
		answers := make(chan error, 2)
		for _, m := range []registry.RemoveInstance{{UID: uid, Service: checkout, By: "api"}, {Service: checkout, Label: "a", By: "api"}} {
			go func() {
				_, err := w.Write(context.Background(), Request{Mutations: []registry.Mutation{m}})
				answers <- err
			}()
		}
		time.Sleep(500 * time.Millisecond)
		resume()
		if err := errors.Join(<-answers, <-answers); err != nil || d.has(instanceKey(uid)) {
			t.Errorf("retries: %v, on disk %v", err, d.has(instanceKey(uid)))
		}
		_, err = w.Write(t.Context(), Request{Mutations: []registry.Mutation{remove(uid)}})
		var refusal *registry.Refusal
		if !errors.As(err, &refusal) || refusal.Reason != registry.NotFound {
			t.Errorf("once more: %v", err)
		}
	})
}

// TestARemovalOvertakesTheBatchInFlight: the tombstone wins over rows that
// reach the disk after it was published.
func TestARemovalOvertakesTheBatchInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		w, shards, stop := run(t, d)
		defer stop()
		old := write(t, w, putService(checkout), putInstance(checkout, "a", "10.0.0.1")).Outcomes[1].UID
		resume := d.stall()
		answer := make(chan Result, 1)
		go func() {
			update := putInstance(checkout, "a", "10.0.0.1").(registry.PutInstance)
			update.Row.Weight = 7
			r, err := w.Write(context.Background(), Request{Mutations: []registry.Mutation{update, putInstance(checkout, "b", "10.0.0.2")}})
			if err != nil {
				t.Error(err)
			}
			answer <- r
		}()
		synctest.Wait() // it is on its way to the disk
		deleted := make(chan error, 1)
		go func() {
			_, err := w.Write(context.Background(), Request{Mutations: []registry.Mutation{registry.DeleteService{Name: checkout, By: "api"}}})
			deleted <- err
		}()
		synctest.Wait()
		if shards.has(old) || !w.LeavingService(checkout) {
			t.Error("the deletion waits for the disk")
		}
		resume()
		uid := (<-answer).Outcomes[1].UID
		if err := <-deleted; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if shards.has(old) || shards.has(uid) || w.Directory().Len() != 0 {
			t.Error("the deleted service has instances again")
		}
		if d.has(instanceKey(old)) || d.has(instanceKey(uid)) {
			t.Error("rows of the deleted service stayed on the disk")
		}
	})
}

func TestFullAndFailingStores(t *testing.T) {
	for _, test := range []struct {
		err  error
		kind Kind
	}{{errFull, Full}, {errBroken, Failing}} {
		synctest.Test(t, func(t *testing.T) {
			d := newDisk()
			w, shards, stop := run(t, d)
			defer stop()
			uid := write(t, w, putService(checkout), putInstance(checkout, "a", "10.0.0.1")).Outcomes[1].UID
			d.set(test.err)
			began := time.Now()
			for _, m := range []registry.Mutation{putInstance(checkout, "b", "10.0.0.2"), remove(uid)} {
				_, err := w.Write(t.Context(), Request{Mutations: []registry.Mutation{m}})
				if kindOf(t, err) != test.kind || !errors.Is(err, test.err) {
					t.Errorf("%T: %v", m, err)
				}
			}
			if err := w.Record(t.Context(), Record{}); kindOf(t, err) != test.kind {
				t.Error(err)
			}
			if time.Since(began) != 0 || shards.has(uid) {
				t.Errorf("answered after %s, still in the views: %v", time.Since(began), shards.has(uid))
			}
			time.Sleep(time.Minute)
			if !d.has(instanceKey(uid)) {
				t.Error("written to a store that refuses")
			}
			d.set(nil)
			time.Sleep(2 * time.Second)
			if _, leaving := w.Leaving(uid); leaving || d.has(instanceKey(uid)) {
				t.Error("the removal was not written when the store came back")
			}
		})
	}
}

// TestACommitThatFails is answered at once, changes nothing, and leaves
// removals pending.
func TestACommitThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		w, shards, stop := run(t, d)
		defer stop()
		uid := write(t, w, putService(checkout), putInstance(checkout, "a", "10.0.0.1")).Outcomes[1].UID
		d.cutNext(errBroken)
		_, err := w.Write(t.Context(), Request{Mutations: []registry.Mutation{putInstance(checkout, "b", "10.0.0.2")}})
		if kindOf(t, err) != Failing || len(shards.live) != 1 {
			t.Errorf("%v, %d live", err, len(shards.live))
		}
		d.cutNext(errBroken)
		_, err = w.Write(t.Context(), Request{Mutations: []registry.Mutation{remove(uid)}})
		if shards.has(uid) {
			t.Error("still in the views")
		}
		if err != nil { // the retry may be in time
			time.Sleep(2 * time.Second)
		}
		if d.has(instanceKey(uid)) {
			t.Error("the removal was not tried again")
		}
	})
}

func TestLapsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		w, shards, stop := run(t, d)
		defer stop()
		uid := write(t, w, putService(checkout), putInstance(checkout, "a", "10.0.0.1")).Outcomes[1].UID
		for range 2 {
			if err := w.Lapsed(time.Now(), uid); err != nil || shards.has(uid) {
				t.Errorf("%v, told %v", err, shards.has(uid))
			}
		}
		synctest.Wait()
		if d.has(instanceKey(uid)) || len(d.records) != 1 || d.records[0].Target != "shop/checkout/a" {
			t.Errorf("on disk %v, records %+v", d.has(instanceKey(uid)), d.records)
		}
		last := shards.changes[len(shards.changes)-1]
		if last.Instances[0].Removal != registry.LapsedOut {
			t.Errorf("told %+v", last.Instances)
		}
	})
}

func TestLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		w, shards, stop := run(t, d)
		defer stop()
		list := &reconcile.List{Answer: reconcile.Listed}
		svc := putService(checkout).(registry.PutService).Row
		list.Services = []*registry.Service{&svc}
		for i, addr := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"} {
			row := putInstance(checkout, string(rune('a'+i)), addr).(registry.PutInstance).Row
			list.Instances = append(list.Instances, &row)
		}
		bad := *list.Instances[0]
		bad.Service.Service = "none"
		list.Instances = append(list.Instances, &bad)
		dec, err := w.Reconcile(t.Context(), time.Now(), "file:a", list)
		if err != nil || len(dec.Diff.Missing) != 6 || len(shards.live) != 4 {
			t.Fatalf("%+v %v, %d live", dec, err, len(shards.live))
		}
		resume := d.stall()
		list.Instances = list.Instances[1:4]
		dec, err = w.Reconcile(t.Context(), time.Now(), "file:a", list)
		if kindOf(t, err) != Hung || dec.Removing != 1 || len(shards.live) != 3 {
			t.Errorf("a removal by a list waits for the disk: %+v %v, %d live", dec, err, len(shards.live))
		}
		resume()
		if _, err = w.Reconcile(t.Context(), time.Now(), "file:a", list); err != nil {
			t.Error(err)
		}
		list.Instances = nil
		if dec, err = w.Reconcile(t.Context(), time.Now(), "file:a", list); err != nil || len(dec.Held) != 3 || len(shards.live) != 3 {
			t.Errorf("the brake: %+v %v", dec, err)
		}
		if n := w.Confirm("file:a"); n != 3 {
			t.Errorf("confirmed %d", n)
		}
		if _, err = w.Reconcile(t.Context(), time.Now(), "file:a", list); err != nil || len(shards.live) != 0 || w.Confirm("file:b") != 0 {
			t.Errorf("after the confirmation %d live, %v", len(shards.live), err)
		}
		d.set(errFull)
		list.Services = append(list.Services, &registry.Service{Name: registry.Name{Namespace: "shop", Service: "new"}, Ports: svc.Ports})
		if _, err = w.Reconcile(t.Context(), time.Now(), "file:a", list); kindOf(t, err) != Full {
			t.Errorf("full: %v", err)
		}
	})
}

func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		w, _, stop := run(t, d)
		defer stop()
		resume := d.stall()
		defer resume()
		w.cfg.QueueLength = 3
		counts := make(map[Kind]int)
		answers := make(chan error)
		for range 10 {
			go func() {
				_, err := w.Write(context.Background(), Request{Mutations: []registry.Mutation{putService(checkout)}})
				answers <- err
			}()
			synctest.Wait()
		}
		for range 10 {
			counts[kindOf(t, <-answers)]++
		}
		if counts[Hung] != 4 || counts[Overloaded] != 6 {
			t.Errorf("answers by kind: %v", counts)
		}
	})
}

func TestAStartTellsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		w, _, stop := run(t, d)
		uid := write(t, w, putService(checkout), putInstance(checkout, "a", "10.0.0.1")).Outcomes[1].UID
		stop()
		orphan := registry.Row{Key: registry.RowKey{Kind: registry.InstanceRow, Name: registry.Name{Namespace: "a", Service: "b"}, UID: 9}}
		i := putInstance(orphan.Key.Name, "", "10.0.0.9").(registry.PutInstance).Row
		i.UID, i.Weight = 9, 100
		orphan.Instance = &i
		d.rows[orphan.Key] = orphan
		w, shards, stop := run(t, d)
		defer stop()
		if _, ok := w.Lookup(uid); !ok || !shards.has(uid) || len(shards.changes) != 1 {
			t.Errorf("looked up %v, told %+v", ok, shards.changes)
		}
		synctest.Wait()
		if d.has(orphan.Key) {
			t.Error("the row that the start undoes is still on the disk")
		}
	})
}
