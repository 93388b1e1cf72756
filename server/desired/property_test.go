package desired

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/registry"
)

// TestWhateverTheDiskDoes: writes and removals meet a disk that hangs, fills
// up, fails and cuts batches off, and the process may start anew. Afterwards
// disk, index, directory and shards agree; everything acknowledged is there;
// nothing removed came back; no uid was given out twice.
func TestWhateverTheDiskDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		script := rapid.SliceOfN(rapid.IntRange(0, 99), 5, 60).Draw(rt, "script")
		var failure string
		synctest.Test(t, func(t *testing.T) {
			h := &history{t: t, d: newDisk(), acked: make(map[registry.UID]bool), gone: make(map[registry.UID]bool)}
			h.w, h.shards, h.stop = run(t, h.d)
			write(t, h.w, putService(checkout))
			for _, n := range script {
				h.step(n)
				h.check()
			}
			h.heal()
			h.compare()
			h.stop()
			failure = h.failure
		})
		if failure != "" {
			rt.Fatal(failure)
		}
	})
}

type history struct {
	t      *testing.T
	d      *disk
	w      *Writer
	shards *told
	stop   func()
	resume func()

	next    int
	acked   map[registry.UID]bool // acknowledged instances that nobody removed
	gone    map[registry.UID]bool // removals that were published
	failure string
}

func (h *history) fail(format string, args ...any) {
	if h.failure == "" {
		h.failure = fmt.Sprintf(format, args...)
	}
}

// step does one thing, by a number of 0 to 99.
func (h *history) step(n int) {
	switch {
	case n < 40:
		h.put(n)
	case n < 65:
		h.removeOne(n)
	case n < 72 && h.resume == nil:
		h.resume = h.d.stall()
	case n < 80:
		h.unstall()
	case n < 84:
		h.d.set(errFull)
	case n < 92:
		h.d.set(nil)
		h.d.cutNext(nil)
	case n < 95 && h.resume == nil:
		h.d.cutNext(errBroken)
	case n < 97:
		time.Sleep(2 * time.Second)
	default:
		h.heal()
		h.stop()
		h.w, h.shards, h.stop = run(h.t, h.d)
	}
}

func (h *history) unstall() {
	if h.resume != nil {
		h.resume()
		h.resume = nil
	}
}

func (h *history) heal() {
	h.unstall()
	h.d.set(nil)
	h.d.cutNext(nil)
	time.Sleep(5 * time.Second) // pending removals are tried again
	synctest.Wait()
}

// put registers an instance; now and then its service is deleted and put again
// while it is on its way.
func (h *history) put(n int) {
	h.next++
	m := putInstance(checkout, fmt.Sprintf("n%d", h.next), fmt.Sprintf("10.0.%d.%d", h.next/250, h.next%250+1))
	type answer struct {
		r   Result
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		r, err := h.w.Write(context.Background(), Request{Mutations: []registry.Mutation{m}})
		answers <- answer{r, err}
	}()
	overtaken := n%5 == 0
	if overtaken {
		synctest.Wait()
		h.recreate()
	}
	a := <-answers
	if overtaken {
		clear(h.acked) // what was on its way went with the service
		return
	}
	var u *Unavailable
	var refusal *registry.Refusal
	switch {
	case a.err == nil && (h.gone[a.r.Outcomes[0].UID] || h.acked[a.r.Outcomes[0].UID]):
		h.fail("%s was given out twice", a.r.Outcomes[0].UID)
	case a.err == nil:
		h.acked[a.r.Outcomes[0].UID] = true
	case errors.As(a.err, &refusal) && refusal.Reason == registry.NotFound:
		h.recreate() // the disk was not there for the service's row
	case !errors.As(a.err, &u):
		h.fail("put: %v", a.err)
	}
}

// recreate deletes the service and puts it again, as far as the disk lets it.
func (h *history) recreate() {
	h.w.Read(func(ix *registry.Index) {
		for _, i := range ix.Instances(checkout) {
			h.gone[i.UID] = true
			delete(h.acked, i.UID)
		}
	})
	for _, m := range []registry.Mutation{registry.DeleteService{Name: checkout, By: "api"}, putService(checkout)} {
		_, err := h.w.Write(context.Background(), Request{Mutations: []registry.Mutation{m}})
		var u *Unavailable
		var refusal *registry.Refusal
		if err != nil && !errors.As(err, &u) && !errors.As(err, &refusal) {
			h.fail("%T: %v", m, err)
		}
	}
}

func (h *history) removeOne(n int) {
	uids := slices.Sorted(maps.Keys(h.acked))
	if len(uids) == 0 {
		return
	}
	uid := uids[n%len(uids)]
	began := time.Now()
	_, err := h.w.Write(context.Background(), Request{Mutations: []registry.Mutation{remove(uid)}})
	var u *Unavailable
	switch {
	case err == nil && h.d.has(instanceKey(uid)):
		h.fail("removal of %s was acknowledged and is not durable", uid)
	case err != nil && !errors.As(err, &u):
		h.fail("removal of %s: %v", uid, err)
	case time.Since(began) > time.Second:
		h.fail("a caller waited %s", time.Since(began))
	}
	h.gone[uid] = true
	delete(h.acked, uid)
}

// check is what holds at every moment.
func (h *history) check() {
	for uid := range h.gone {
		if h.shards.has(uid) {
			h.fail("removed %s is in the views", uid)
		}
	}
	for uid := range h.acked {
		if !h.d.has(instanceKey(uid)) {
			h.fail("acknowledged %s is not on the disk", uid)
		}
	}
}

// compare is what holds when everything is quiet.
func (h *history) compare() {
	h.check()
	h.w.Read(func(ix *registry.Index) {
		count := 0
		for k := range h.d.rows {
			if k.Kind != registry.InstanceRow {
				continue
			}
			count++
			if _, ok := ix.Instance(k.UID); !ok || !h.shards.has(k.UID) {
				h.fail("%s is on the disk and not in the index", k.UID)
			}
		}
		if n := ix.InstanceCount(checkout); n != count || n != h.w.Directory().Len() || n != len(h.shards.live) {
			h.fail("%d instances in the index, %d on the disk, %d in the directory, %d told", n, count, h.w.Directory().Len(), len(h.shards.live))
		}
	})
}
