package store

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// The crash test runs lives of a store. At every operation that changes a
// file, in any goroutine, it keeps what a crash at that moment would leave:
// everything synced, and a part of what was not. Each of those remains is then
// opened and judged by what had been acknowledged at the moment of the crash.
// From some of them another life goes on, so that crashes in a second and
// third opening of a store with acknowledged rows are judged too.

// crashPoints is how many are judged at least; SIGHTLINE_CRASH_POINTS asks for more.
const crashPoints = 690

// promises is what had been acknowledged at one moment.
type promises struct {
	rows     map[int]uint64 // revision of each batch of rows, acknowledged
	trying   map[int]uint64 // revision that a commit under way would bring
	epoch    uint64         // of the newest completed start
	reserved uint64         // every version number below it may be in use
	base     uint64         // highest id in use
	audit    int            // records
}

func (p promises) clone() promises {
	p.rows, p.trying = maps.Clone(p.rows), maps.Clone(p.trying)
	return p
}

// remains is what one crash leaves.
type remains struct {
	fs       *vfs.MemFS
	life     int // 1: the crash was in the first opening of the store
	op       string
	promised promises
}

// life is one opening of the store, until its process dies.
type life struct {
	number  int
	percent int
	fs      *vfs.MemFS
	rng     *rand.Rand

	renames  sync.Mutex // held while a clone is made, and by what may not meet one
	mu       sync.Mutex // also held by the injector: it runs on Pebble's goroutines too
	promised promises
	left     []remains
}

func (l *life) inject(op errorfs.Op) error {
	if op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renames.Lock()
	defer l.renames.Unlock()
	l.left = append(l.left, remains{
		fs:       l.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: l.percent, RNG: l.rng}),
		life:     l.number,
		op:       fmt.Sprintf("operation %d, %v %s", len(l.left), op.Kind, op.Path),
		promised: l.promised.clone(),
	})
	return nil
}

// steadyFS keeps clones away from the operations in which MemFS takes its
// clone lock twice: a clone that waits between the two would stop both for ever.
type steadyFS struct {
	*vfs.MemFS
	renames *sync.Mutex
}

// ReuseForWrite implements vfs.FS.
func (f steadyFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.renames.Lock()
	defer f.renames.Unlock()
	return f.MemFS.ReuseForWrite(from, to, c)
}

// Link implements vfs.FS.
func (f steadyFS) Link(from, to string) error {
	f.renames.Lock()
	defer f.renames.Unlock()
	return f.MemFS.Link(from, to)
}

func (l *life) promise(change func(*promises)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.promised)
}

const (
	batchRows = 3 // rows that one commit writes together
	batches   = 4 // different sets of rows
)

func crashConfig(fs vfs.FS) Config {
	return Config{Dir: "data", FS: fs, Now: start, MemTableBytes: 64 << 10}
}

func batchName(batch, row int) registry.Name {
	return registry.Name{Namespace: fmt.Sprintf("ns%d", batch), Service: fmt.Sprintf("row%d", row)}
}

// batchOf writes the same revision into every row of a batch; every seventh
// revision deletes them. The annotation makes memtables fill up and rotate.
func batchOf(batch int, rev uint64) []registry.Row {
	var rows []registry.Row
	for i := range batchRows {
		r := serviceRow(batchName(batch, i), rev)
		r.Service.Annotations["fill"] = strings.Repeat(strconv.FormatUint(rev, 10), 300)
		if rev%7 == 0 {
			r = deletion(r)
		}
		rows = append(rows, r)
	}
	return append(rows, countersRow(registry.UID(rev), rev))
}

// run opens the store, writes, and returns what crashes on the way leave. At
// the end the process just goes, with the store open.
func (l *life) run(t *testing.T, commits int) []remains {
	cfg := crashConfig(errorfs.Wrap(steadyFS{l.fs, &l.renames}, errorfs.InjectorFunc(l.inject)))
	s, loaded, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.promise(func(p *promises) { p.epoch, p.reserved = loaded.Epoch, loaded.Reserved })
	rev := loaded.Base
	var old *views.View
	for i := range commits {
		rev++
		batch := i % batches
		l.promise(func(p *promises) { p.trying[batch] = rev })
		if err := s.Commit(context.Background(), batchOf(batch, rev), []Record{{Action: "test", At: start}}); err != nil {
			t.Fatal(err)
		}
		l.promise(func(p *promises) {
			p.rows[batch], p.base = rev, rev
			p.audit++
			delete(p.trying, batch)
		})
		p := publication(views.Version{Epoch: s.epoch, Seq: rev}, old, 20)
		old = p.New
		s.PutView(p)
		s.AppendTransition(Transition{At: start, Name: checkout})
		s.SaveCheckpoint(checkout, []byte(strings.Repeat("c", 500)))
		if i == commits/2 {
			end := make(chan uint64, 1)
			s.Refill(func(e uint64) { end <- e })
			e := <-end
			l.promise(func(p *promises) { p.reserved = e })
		}
	}
	l.mu.Lock()
	left := l.left
	l.mu.Unlock()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return left
}

// judge opens what a crash left and compares it with what was promised.
func (r remains) judge(t *testing.T) {
	s, l, err := Open(crashConfig(r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})))
	if err != nil {
		t.Errorf("life %d, %s: does not open: %v", r.life, r.op, err)
		return
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Errorf("life %d, %s: close: %v", r.life, r.op, err)
		}
	}()
	for _, complaint := range r.complaints(s, l) {
		t.Errorf("life %d, %s: %s", r.life, r.op, complaint)
	}
}

func (r remains) complaints(s *Store, l Loaded) (list []string) {
	complain := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	p := r.promised
	if l.Status.State != Writable || len(l.Damaged)+len(l.Alarms) > 0 {
		complain("status %v, damaged %v, alarms %v", l.Status, l.Damaged, l.Alarms)
	}
	if l.Epoch <= p.epoch || l.Next < p.reserved || l.Base < p.base {
		complain("starts at %d.%d, base %d: promised %d.%d, base %d", l.Epoch, l.Next, l.Base, p.epoch, p.reserved, p.base)
	}
	held := make(map[registry.Name]uint64)
	for _, row := range l.Rows {
		if row.Service != nil {
			held[row.Key.Name] = row.Service.Revision
		}
	}
	for batch := range batches {
		if err := p.wholeAndKept(batch, held); err != "" {
			complain("%s", err)
		}
	}
	records, damaged, err := s.Audit(context.Background(), 0, 1<<20)
	if err != nil || damaged > 0 || len(records) < p.audit {
		complain("%d audit records of %d, %d damaged, %v", len(records), p.audit, damaged, err)
	}
	if _, damaged, err := s.LatestViews(context.Background()); err != nil || damaged > 0 {
		complain("views: %d damaged, %v", damaged, err)
	}
	return list
}

// wholeAndKept: the rows of a batch are all of one revision, which is the last
// acknowledged one or that of the commit that was under way.
func (p promises) wholeAndKept(batch int, held map[registry.Name]uint64) string {
	var found []uint64
	for i := range batchRows {
		found = append(found, held[batchName(batch, i)]) // 0: deleted, or never there
	}
	effect := func(rev uint64) uint64 {
		if rev%7 == 0 {
			return 0
		}
		return rev
	}
	acked, trying := effect(p.rows[batch]), effect(p.trying[batch])
	_, underWay := p.trying[batch]
	for _, rev := range found {
		if rev != found[0] || rev != acked && (!underWay || rev != trying) {
			return fmt.Sprintf("batch %d holds revisions %v: acknowledged %d, under way %v %d", batch, found, acked, underWay, trying)
		}
	}
	return ""
}

func TestCrashes(t *testing.T) {
	want := crashPoints
	if v := os.Getenv("SIGHTLINE_CRASH_POINTS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("SIGHTLINE_CRASH_POINTS is %q, not a number", v)
		}
		want = max(want, n)
	}
	began := time.Now()
	var byLife [4]atomic.Int64
	percents := []int{0, 30, 70}
	if want > crashPoints {
		percents = []int{0, 10, 50, 100, 30, 70} // F1's long run
	}
	t.Run("points", func(t *testing.T) {
		for i, percent := range percents {
			t.Run(fmt.Sprintf("%d%%", percent), func(t *testing.T) {
				t.Parallel()
				crashAll(t, percent, uint64(i+1), want/len(percents)+1, &byLife)
			})
		}
	})
	first, later := byLife[1].Load(), byLife[2].Load()+byLife[3].Load()
	t.Logf("%d crash points: %d in a first opening, %d in a second, %d in a third; %s",
		first+later, first, byLife[2].Load(), byLife[3].Load(), time.Since(began).Round(time.Millisecond))
	if first+later < int64(want) || later*3 < first+later {
		t.Errorf("%d points, %d in a later opening; want %d, a third of them in a later one", first+later, later, want)
	}
}

// crashAll judges at least want points at one percentage of surviving data.
func crashAll(t *testing.T, percent int, seed uint64, want int, byLife *[4]atomic.Int64) {
	rng := rand.New(rand.NewPCG(seed, uint64(percent)))
	done := 0
	judge := func(left []remains) {
		for _, r := range left {
			r.judge(t)
			byLife[r.life].Add(1)
			done++
		}
	}
	for round := 0; done < want; round++ {
		l := &life{number: 1, percent: percent, fs: vfs.NewCrashableMem(), rng: rng,
			promised: promises{rows: make(map[int]uint64), trying: make(map[int]uint64)}}
		left := l.run(t, 12+round%20)
		judge(sample(rng, left, min(want/2, 150)))
		for range 2 {
			for number := 2; number <= 3; number++ {
				// The later the crash, the more there is to lose.
				from := left[len(left)*3/4+rng.IntN(len(left)/4)]
				if from = from.whole(); from.promised.epoch == 0 {
					continue
				}
				next := &life{number: number, percent: percent, fs: from.fs, rng: rng, promised: from.promised.settled(t, from)}
				left = next.run(t, 6)
				judge(sample(rng, left, min(want/8+1, 50)))
			}
		}
	}
}

func sample(rng *rand.Rand, left []remains, n int) []remains {
	if len(left) <= n {
		return left
	}
	left = slices.Clone(left)
	rng.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
	return left[:n]
}

// whole returns the same remains on a file system of their own.
func (r remains) whole() remains {
	r.fs = r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})
	return r
}

// settled turns what was under way at a crash into what it became: a later
// life promises what it found.
func (p promises) settled(t *testing.T, r remains) promises {
	s, l, err := Open(crashConfig(r.whole().fs))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range l.Rows {
		if row.Service == nil {
			continue
		}
		for batch := range batches {
			if row.Key.Name == batchName(batch, 0) && row.Service.Revision == p.trying[batch] {
				p.rows[batch] = row.Service.Revision
			}
		}
	}
	for batch, rev := range p.trying {
		if rev%7 == 0 && !slices.ContainsFunc(l.Rows, func(r registry.Row) bool { return r.Key.Name == batchName(batch, 0) }) {
			p.rows[batch] = rev
		}
	}
	clear(p.trying)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}
