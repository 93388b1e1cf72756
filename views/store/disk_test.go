package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/views"
)

// kinds are the operations that Pebble and the store use.
var kinds = map[errorfs.OpKind]string{
	errorfs.OpCreate: "create", errorfs.OpLink: "link", errorfs.OpOpen: "open", errorfs.OpOpenDir: "open folder",
	errorfs.OpRemove: "remove", errorfs.OpRemoveAll: "remove all", errorfs.OpRename: "rename",
	errorfs.OpReuseForWrite: "reuse", errorfs.OpMkdirAll: "make folder", errorfs.OpLock: "lock", errorfs.OpList: "list",
	errorfs.OpFilePreallocate: "preallocate", errorfs.OpStat: "stat", errorfs.OpGetDiskUsage: "disk usage",
	errorfs.OpFileRead: "read", errorfs.OpFileReadAt: "read at", errorfs.OpFileWrite: "write", errorfs.OpFileWriteAt: "write at",
	errorfs.OpFileStat: "file stat", errorfs.OpFileSync: "sync", errorfs.OpFileSyncData: "sync data", errorfs.OpFileSyncTo: "sync to",
}

// mustFreeze are those that the work of a running store cannot do without.
var mustFreeze = map[errorfs.OpKind]bool{
	errorfs.OpCreate: true, errorfs.OpReuseForWrite: true, errorfs.OpFileWrite: true, errorfs.OpFileSync: true,
	errorfs.OpFileSyncData: true, errorfs.OpFileStat: true,
}

// openOn opens a store that may freeze: its goroutines may stay behind.
func openOn(t *testing.T, fs vfs.FS, frozen chan<- Status, resumed chan<- time.Duration) (*Store, Loaded, error) {
	t.Helper()
	s, l, err := Open(Config{
		Dir: "data", FS: fs, Now: start, MemTableBytes: 64 << 10, RetryEvery: 20 * time.Millisecond, SlowAfter: time.Second,
		Events: Events{
			Frozen:  func(st Status) { frozen <- st },
			Resumed: func(after time.Duration) { resumed <- after },
		},
	})
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return s, l, err
}

func bigRow(i int) registry.Row {
	r := serviceRow(registry.Name{Namespace: "shop", Service: fmt.Sprintf("s%d", i%50)}, uint64(i))
	r.Service.Annotations["fill"] = strings.Repeat("x", 2000)
	return r
}

// work commits until the store refuses, for up to n commits, and returns how
// many were acknowledged and the error that ended it. A commit that was under
// way when the disk filled up is held until there is room: that is errHeld.
func work(t *testing.T, s *Store, from, n int) (acked int, err error) {
	t.Helper()
	for i := range n {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		stop := make(chan struct{})
		go func() {
			for ; s.State() != Full; time.Sleep(time.Millisecond) {
				select {
				case <-stop:
					return
				default:
				}
			}
			time.Sleep(50 * time.Millisecond)
			cancel()
		}()
		err = s.Commit(ctx, []registry.Row{bigRow(from + i)}, nil)
		close(stop)
		cancel()
		switch {
		case errors.Is(err, context.Canceled):
			return i, errHeld
		case errors.Is(err, context.DeadlineExceeded):
			t.Fatal("a commit is held")
		case err != nil:
			return i, err
		}
		s.PutView(publication(views.Version{Epoch: s.epoch, Seq: uint64(from + i)}, nil, 3))
	}
	return n, nil
}

var errHeld = errors.New("the commit waits for room")

// holds checks that a start finds everything that was acknowledged: the rows
// up to the last acknowledged number, or of the one that was under way.
func holds(t *testing.T, l Loaded, acked int) {
	t.Helper()
	newest := make(map[string]uint64)
	for _, r := range l.Rows {
		if r.Service != nil {
			newest[r.Key.Name.Service] = r.Service.Revision
		}
	}
	for i := max(0, acked-50); i < acked; i++ {
		if got := newest[fmt.Sprintf("s%d", i%50)]; got < uint64(i) {
			t.Errorf("row s%d holds %d, acknowledged was %d", i%50, got, i)
			return
		}
	}
}

// TestADiskThatFailsUnderWork: whatever operation gives whatever error, from
// some moment on, the process lives, nobody is held, reads go on, and no
// acknowledged write is lost. A full disk is told as full and heals by itself;
// after any other error nothing is acknowledged any more.
func TestADiskThatFailsUnderWork(t *testing.T) {
	for kind, name := range kinds {
		for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
			t.Run(fmt.Sprintf("%s/%v", name, cause), func(t *testing.T) {
				t.Parallel()
				inj := &oneKind{kind: kind, err: cause}
				mem := vfs.NewMem()
				frozen, resumed := make(chan Status, 10), make(chan time.Duration, 10)
				s, _, err := openOn(t, errorfs.Wrap(mem, inj), frozen, resumed)
				must(t, err)
				before, err := work(t, s, 0, 120)
				must(t, err)
				inj.on.Store(true)
				acked, err := work(t, s, before, 120)
				acked += before
				if err == nil && mustFreeze[kind] {
					t.Fatal("the store did not notice")
				}
				if err == nil {
					return // this kind does not occur here; TestEveryKindOfOperation has it
				}
				inj.on.Store(false)
				judgeRefusal(t, s, err, <-frozen, cause)
				if cause == syscall.ENOSPC {
					select {
					case <-resumed:
					case <-time.After(10 * time.Second):
						t.Fatal("the store does not notice that there is room again")
					}
					more, err := work(t, s, acked+1, 60)
					must(t, err)
					acked += 1 + more
				}
				must(t, s.Close())
				_, l, err := openOn(t, mem, frozen, resumed)
				must(t, err)
				holds(t, l, acked)
			})
		}
	}
}

func judgeRefusal(t *testing.T, s *Store, err error, st Status, cause error) {
	t.Helper()
	want := Frozen
	if cause == syscall.ENOSPC {
		want = Full
	}
	told := StateOf(err) == want && errors.Is(err, cause) || want == Full && errors.Is(err, errHeld)
	if !told || st.State != want || !errors.Is(st.Err, cause) {
		t.Errorf("commit: %v; told %+v; want %v", err, st, want)
	}
	if want == Full {
		return // it may be writable again already
	}
	began := time.Now()
	for range 100 {
		if err := s.Commit(t.Context(), []registry.Row{bigRow(1)}, nil); StateOf(err) != want {
			t.Errorf("a later commit: %v", err)
		}
	}
	if took := time.Since(began); took > 100*time.Millisecond {
		t.Errorf("100 refusals took %s", took)
	}
	if _, ok, err := s.ViewAt(t.Context(), checkout, views.Version{Epoch: s.epoch, Seq: 1 << 40}); err != nil || !ok {
		t.Errorf("reads: %v %v", ok, err)
	}
}

// TestADiskThatFailsAtTheStart: the second opening meets the errors. It serves
// what it can read, or says that it cannot; a full disk heals by itself.
func TestADiskThatFailsAtTheStart(t *testing.T) {
	for kind, name := range kinds {
		for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
			t.Run(fmt.Sprintf("%s/%v", name, cause), func(t *testing.T) {
				t.Parallel()
				mem := vfs.NewMem()
				frozen, resumed := make(chan Status, 10), make(chan time.Duration, 10)
				s, _, err := openOn(t, mem, frozen, resumed)
				must(t, err)
				acked, err := work(t, s, 0, 60)
				must(t, err)
				must(t, s.Close())

				inj := &oneKind{kind: kind, err: cause}
				inj.on.Store(true)
				s, l, err := openOn(t, errorfs.Wrap(mem, inj), frozen, resumed)
				inj.on.Store(false)
				if err != nil {
					if !errors.Is(err, cause) || !strings.Contains(err.Error(), "data") {
						t.Errorf("the error does not say why: %v", err)
					}
					_, l, err = openOn(t, mem, frozen, resumed)
					must(t, err)
				}
				holds(t, l, acked)
				if l.Status.State == Full {
					<-resumed
					_, err := work(t, s, acked, 5)
					must(t, err)
				}
			})
		}
	}
}

// TestTheGroupUnderWayWhenTheDiskFills: a commit that was on its way waits for
// the reopening, and its answer is true.
func TestTheGroupUnderWayWhenTheDiskFills(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("written %v", after), func(t *testing.T) {
			mem := vfs.NewMem()
			var mu sync.Mutex
			full := false
			// The log's write, or the sync that follows it, finds the disk full.
			inj := errorfs.InjectorFunc(func(op errorfs.Op) error {
				mu.Lock()
				defer mu.Unlock()
				if !full || !strings.HasSuffix(op.Path, ".log") && !strings.HasSuffix(op.Path, ".probe") {
					return nil
				}
				if after && op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".log") || op.Kind.ReadOrWrite() == errorfs.OpIsRead {
					return nil
				}
				return syscall.ENOSPC
			})
			frozen, resumed := make(chan Status, 10), make(chan time.Duration, 10)
			s, _, err := openOn(t, errorfs.Wrap(mem, inj), frozen, resumed)
			must(t, err)
			commit(t, s, bigRow(1))
			end := make(chan uint64, 10) // the reopening tells it too
			mu.Lock()
			full = true
			mu.Unlock()
			answer := make(chan error, 1)
			go func() { answer <- s.Commit(context.Background(), []registry.Row{bigRow(2)}, nil) }()
			<-frozen
			s.Refill(func(e uint64) { end <- e }) // answered when it can be
			select {
			case err := <-answer:
				t.Fatalf("answered %v before the store knows", err)
			case <-time.After(50 * time.Millisecond):
			}
			mu.Lock()
			full = false
			mu.Unlock()
			err = <-answer
			<-resumed
			<-end
			must(t, s.Close())
			_, l, openErr := openOn(t, mem, frozen, resumed)
			must(t, openErr)
			found := false
			for _, r := range l.Rows {
				found = found || r.Key.Name.Service == "s2"
			}
			if found != (err == nil) || found != after || err != nil && StateOf(err) != Full {
				t.Errorf("answered %v, on disk %v", err, found)
			}
		})
	}
}

// TestARealFileSystem meets the operations that a memory file system lacks.
func TestARealFileSystem(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpFilePreallocate, errorfs.OpFileSyncTo, errorfs.OpFileSyncData} {
		for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
			t.Run(fmt.Sprintf("%s/%v", kinds[kind], cause), func(t *testing.T) {
				inj := &oneKind{kind: kind, err: cause}
				frozen := make(chan Status, 1)
				cfg := Config{
					Dir: t.TempDir(), FS: errorfs.Wrap(vfs.Default, inj), Now: start, MemTableBytes: 64 << 10, RetryEvery: time.Hour,
					Events: Events{Frozen: func(st Status) { frozen <- st }},
				}
				s, _, err := Open(cfg)
				must(t, err)
				acked, err := work(t, s, 0, 10)
				must(t, err)
				inj.on.Store(true)
				for i := range 10 {
					n, _ := work(t, s, acked+i*20, 20)
					if n < 20 {
						acked += i*20 + n
						break
					}
				}
				if s.State() != Writable {
					judgeFrozenStore(t, s, <-frozen, cause)
				} else if kind == errorfs.OpFileSyncData {
					t.Error("the store did not notice")
				}
				inj.on.Store(false)
				must(t, s.Close())
				cfg.Events = Events{}
				s, l, err := Open(cfg)
				must(t, err)
				holds(t, l, min(acked, 10))
				must(t, s.Close())
			})
		}
	}
}

func judgeFrozenStore(t *testing.T, s *Store, st Status, cause error) {
	t.Helper()
	if (st.State == Full) != (cause == syscall.ENOSPC) {
		t.Errorf("told %+v", st)
	}
	if err := s.Commit(t.Context(), nil, []Record{{}}); StateOf(err) != st.State {
		t.Errorf("commit: %v", err)
	}
}
