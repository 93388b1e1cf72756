package file_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sightlinedev/sightline/registry"
	"github.com/sightlinedev/sightline/registry/reconcile"
	"github.com/sightlinedev/sightline/registry/source/file"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines is a parser for tests: each line names a service, "bad" is a mistake.
func lines(name string, data []byte, into *reconcile.List) error {
	for n := range strings.FieldsSeq(string(data)) {
		if n == "bad" {
			return fmt.Errorf("%s:1:1: bad", name)
		}
		into.Services = append(into.Services, &registry.Service{Name: registry.Name{Namespace: "a", Service: n}})
	}
	return nil
}

// folder is a folder under watch, inside a synctest bubble.
type folder struct {
	t     *testing.T
	dir   string
	stop  context.CancelFunc
	ended chan error

	mu      sync.Mutex // guards what Emit touches
	reports []file.Report
	settled bool // what Emit answers
}

// watch runs a source over the folder, which holds the given files (name,
// content, name, content), inside the current bubble until close.
func watch(t *testing.T, dir string, files ...string) *folder {
	f := &folder{t: t, dir: dir, settled: true, ended: make(chan error, 1)}
	for i := 0; i < len(files); i += 2 {
		f.write(files[i], files[i+1])
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.stop = cancel
	src := file.New(file.Config{Dir: dir, Parse: lines, Emit: func(_ context.Context, r file.Report) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.reports = append(f.reports, r)
		return f.settled
	}})
	go func() { f.ended <- src.Run(ctx) }()
	return f
}

func (f *folder) close() {
	f.t.Helper()
	f.stop()
	if err := <-f.ended; !errors.Is(err, context.Canceled) {
		f.t.Errorf("Run ended with %v", err)
	}
}

// write puts a file in place whole, with a time of its own: the bubble's clock
// stands while the file system's goes on.
func (f *folder) write(name, content string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600); err != nil {
		f.t.Fatal(err)
	}
	stamp := time.Now().Add(time.Duration(len(content)) * time.Millisecond)
	if err := os.Chtimes(filepath.Join(f.dir, name), stamp, stamp); err != nil {
		f.t.Fatal(err)
	}
}

func (f *folder) remove(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

// after lets the time pass and describes the newest report, how many came, and
// what is held.
func (f *folder) after(d time.Duration) string {
	f.t.Helper()
	before := len(f.seen())
	time.Sleep(d)
	synctest.Wait()
	all := f.seen()
	if len(all) == before {
		return "nothing new"
	}
	return text(all[len(all)-1])
}

// seen are the reports so far.
func (f *folder) seen() []file.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reports
}

func (f *folder) newest() file.Report {
	all := f.seen()
	return all[len(all)-1]
}

func (f *folder) settle(settled bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settled = settled
}

func text(r file.Report) string {
	var names []string
	for _, s := range r.List.Services {
		names = append(names, s.Name.Service)
	}
	s := r.List.Answer.String() + ": " + strings.Join(names, " ")
	if r.List.Incomplete != "" {
		s += "; not read yet " + r.List.Incomplete
	}
	for _, h := range r.Held {
		s += fmt.Sprintf("; %s held with %d: %s", h.File, h.Gave, h.Why)
	}
	return s
}

func (f *folder) want(got, want string) {
	f.t.Helper()
	if got != want {
		f.t.Errorf("got  %s\nwant %s", got, want)
	}
}

// pass is one whole pass and a moment: looks happen between the moments.
const (
	pass   = file.Pass
	moment = 10 * time.Millisecond
)

func TestFilesComeAndGo(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := watch(t, dir)
		defer f.close()
		f.want(f.after(file.Look+moment), "listed: ")
		f.write("b.yaml", "two three")
		f.write("a.yaml", "one")
		f.write("notes.txt", "four")
		f.write(".hidden.yaml", "five")
		f.want(f.after(pass), "listed: one two three")
		f.want(f.after(5*pass), "nothing new")
		f.write("a.yaml", "one more")
		f.want(f.after(pass), "listed: one more two three")
		f.remove("b.yaml")
		f.want(f.after(pass), "listed: one more")
		f.remove("a.yaml")
		f.want(f.after(pass), "listed: ")
	})
}

func TestAMistakeHoldsWhatTheFileGave(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := watch(t, dir, "a.yaml", "one", "b.yaml", "two")
		defer f.close()
		f.want(f.after(file.Look+moment), "listed: one two")
		f.write("a.yaml", "one bad")
		f.write("b.yaml", "two three")
		f.want(f.after(pass), "listed: one two three; a.yaml held with 1: a.yaml:1:1: bad")
		since := f.newest().Held[0].Since
		f.want(f.after(3*pass), "nothing new")
		f.write("a.yaml", "one bad bad")
		f.write("b.yaml", "two")
		f.want(f.after(pass), "listed: one two; a.yaml held with 1: a.yaml:1:1: bad")
		if got := f.newest().Held[0].Since; !got.Equal(since) {
			t.Errorf("held since %v, then since %v", since, got)
		}
		f.write("a.yaml", "four")
		f.want(f.after(pass), "listed: four two")
		f.write("a.yaml", "bad")
		f.want(f.after(pass), "listed: four two; a.yaml held with 1: a.yaml:1:1: bad")
		f.remove("a.yaml") // a removed file withdraws, held or not
		f.want(f.after(pass), "listed: two")
	})
}

// A file that changes between the looks of each pass is never read, and keeps
// what it gave.
func TestAFileBeingWrittenWaits(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := watch(t, dir, "a.yaml", "one")
		defer f.close()
		f.want(f.after(file.Look+moment), "listed: one")
		time.Sleep(file.Look) // into the pause between two looks
		content := "bad"
		for range 4 {
			content += " bad"
			f.write("a.yaml", content)
			time.Sleep(pass)
		}
		f.want(text(f.newest()), "listed: one; a.yaml held with 1: it is still being written")
		f.write("a.yaml", "one two")
		f.want(f.after(2*pass), "listed: one two")
	})
}

// A file that is replaced by removing and creating it is not withdrawn when a
// look falls into the gap.
func TestAReplacedFileIsNotWithdrawn(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := watch(t, dir, "a.yaml", "one")
		defer f.close()
		f.want(f.after(file.Look+moment), "listed: one")
		time.Sleep(file.Look) // after the first look of the second pass
		f.remove("a.yaml")
		time.Sleep(file.Look) // the second look found nothing
		f.write("a.yaml", "one two")
		f.want(f.after(2*pass), "listed: one two")
		for _, r := range f.seen() {
			if len(r.List.Services) == 0 {
				t.Errorf("withdrawn in between: %s", text(r))
			}
		}
	})
}

// What a file gave before a restart cannot be told from what is gone, until
// every file was read once.
func TestAfterAStartNothingGoesUntilAllWasRead(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := watch(t, dir, "a.yaml", "one", "b.yaml", "bad")
		defer f.close()
		f.want(f.after(file.Look+moment), "listed: one; not read yet b.yaml; b.yaml held with 0: b.yaml:1:1: bad")
		f.write("b.yaml", "two")
		f.want(f.after(pass), "listed: one two")
		f.write("c.yaml", "bad") // new: nothing can be from it
		f.want(f.after(pass), "listed: one two; c.yaml held with 0: c.yaml:1:1: bad")
	})
}

func TestAMissingFolderIsNoAnswer(t *testing.T) {
	parent := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := watch(t, filepath.Join(parent, "manifests"))
		defer f.close()
		got := f.after(file.Look + moment)
		if r := f.seen()[0]; r.List.Answer != reconcile.NoAnswer || !strings.Contains(r.List.Detail, "manifests") {
			t.Errorf("got %s: %q", got, r.List.Detail)
		}
		if err := os.Mkdir(f.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		f.write("a.yaml", "one")
		f.want(f.after(pass), "listed: one")
		if err := os.Rename(f.dir, f.dir+".away"); err != nil {
			t.Fatal(err)
		}
		f.want(f.after(pass), "no answer: ")
		if err := os.Rename(f.dir+".away", f.dir); err != nil {
			t.Fatal(err)
		}
		f.want(f.after(pass), "listed: one")
	})
}

// A folder named like a manifest, a link into nowhere and a link to a file.
func TestOddEntries(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		for _, err := range []error{os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o700),
			os.Symlink("nowhere", filepath.Join(dir, "broken.yaml")), os.Symlink("real.txt", filepath.Join(dir, "link.yaml"))} {
			if err != nil {
				t.Fatal(err)
			}
		}
		f := watch(t, dir, "real.txt", "one")
		defer f.close()
		f.want(f.after(file.Look+moment), "listed: one; not read yet broken.yaml; broken.yaml held with 0: it cannot be looked at; check that it exists and may be read")
		f.remove("broken.yaml")
		f.want(f.after(pass), "listed: one")
	})
}

func TestAnUnsettledListComesAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := watch(t, dir, "a.yaml", "one")
		defer f.close()
		f.settle(false)
		time.Sleep(10*pass - moment)
		if len(f.seen()) != 10 {
			t.Errorf("%d reports in 10 passes of an unsettled list", len(f.seen()))
		}
		f.settle(true)
		time.Sleep(pass)
		before := len(f.seen())
		time.Sleep(2*file.Refresh + pass)
		if n := len(f.seen()) - before; n != 2 {
			t.Errorf("%d reports in two refreshes of a settled list", n)
		}
	})
}

// With the real parser and a real index: a file that is broken for a while
// keeps its service, a removed one withdraws it.
func TestManifestsReachTheRegistry(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ix := registry.NewIndex(0)
		src := reconcile.NewSource("file:main", reconcile.DefaultLimits())
		var refused []error
		var held []string
		var mu sync.Mutex // guards them all
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		s := file.New(file.Config{Dir: dir, Parse: file.Manifests, Emit: func(_ context.Context, r file.Report) bool {
			mu.Lock()
			defer mu.Unlock()
			for _, h := range r.Held {
				held = append(held, h.Why)
			}
			d := src.Pass(time.Now(), &r.List, ix.Owned("file:main"), ix.InstanceCount)
			o := ix.Begin()
			_, errs := o.PlanEach(d.Apply)
			refused = append(refused, slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
			ix.Apply(o)
			return d.Settled()
		}})
		f := &folder{t: t, dir: dir}
		n := registry.Name{Namespace: "shop", Service: "checkout"}
		f.write("checkout.yaml", checkout)
		go func() { ended <- s.Run(ctx) }()
		sleep := func(d time.Duration) {
			mu.Unlock()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
		}
		mu.Lock()
		sleep(pass - moment)
		first, ok := ix.InstanceByLabel(n, "a")
		if !ok || len(refused) > 0 || first.Source != "file:main" || first.Proof != registry.ByAuthority {
			t.Fatalf("after the first pass: %+v, refused %v, held %v", first, refused, held)
		}
		f.write("checkout.yaml", checkout+"\nunknown: key\n")
		sleep(3 * pass)
		if !slices.ContainsFunc(held, func(why string) bool { return strings.Contains(why, "checkout.yaml:15:1") }) {
			t.Errorf("the mistake is not reported with its place: %q", held)
		}
		if again, _ := ix.InstanceByLabel(n, "a"); again != first {
			t.Errorf("a broken file changed the row: %+v", again)
		}
		f.write("checkout.yaml", strings.Replace(checkout, "10.1.2.3", "10.1.2.44", 1))
		sleep(2 * pass)
		if next, ok := ix.InstanceByLabel(n, "a"); !ok || next.UID == first.UID {
			t.Errorf("another address is not a new instance: %+v", next)
		}
		f.remove("checkout.yaml")
		sleep(2 * pass)
		if _, ok := ix.Service(n); ok {
			t.Error("a removed file does not withdraw its service")
		}
		mu.Unlock()
		cancel()
		<-ended
	})
}

const checkout = `apiVersion: sightline.dev/v1
kind: Service
metadata: {namespace: shop, name: checkout}
spec:
  ports: [{name: grpc, number: 8080, protocol: grpc}]
---
apiVersion: sightline.dev/v1
kind: Instance
metadata: {namespace: shop, name: a}
spec:
  service: checkout
  identity: spiffe://t.test/ns/shop/sa/checkout
  address: 10.1.2.3
`
