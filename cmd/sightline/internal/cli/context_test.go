package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// contexts are the files in the contexts' folder, and the current one's name.
func (w *world) contexts() (names []string, current string) {
	w.t.Helper()
	dir := filepath.Join(w.dir, "config", "sightline", "contexts")
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "current" {
			names = append(names, e.Name())
		}
	}
	raw, _ := os.ReadFile(filepath.Join(dir, "current")) // there may be none
	return names, string(raw)
}

func (w *world) save(name, api string) (undo func()) {
	w.t.Helper()
	undo, err := saveTarget(target{Name: name, API: api, Cert: "c", Key: "k", Bundle: "b"})
	if err != nil {
		w.t.Fatal(err)
	}
	return undo
}

// TestContextsComeAndGo gives the context back that was there before.
func TestContextsComeAndGo(t *testing.T) {
	w := newWorld(t)
	undoDev := w.save("dev", "127.0.0.1:1")
	undoDemo := w.save("demo", "127.0.0.1:2")
	if names, current := w.contexts(); len(names) != 2 || current != "demo" {
		t.Fatalf("got %v, current %q", names, current)
	}
	undoDemo()
	if got, err := loadTarget(""); err != nil || got.Name != "dev" || got.API != "127.0.0.1:1" {
		t.Errorf("after the demo: %+v, %v", got, err)
	}
	undoDev()
	if names, current := w.contexts(); len(names) != 0 || current != "" {
		t.Errorf("something is left: %v, current %q", names, current)
	}
}

// TestContextOfAnotherProcessSurvives does not take away what another process
// of the same kind has written since, nor a choice made since.
func TestContextOfAnotherProcessSurvives(t *testing.T) {
	w := newWorld(t)
	undoFirst := w.save("dev", "127.0.0.1:1")
	undoSecond := w.save("dev", "127.0.0.1:2")
	undoFirst()
	if got, err := loadTarget(""); err != nil || got.API != "127.0.0.1:2" {
		t.Errorf("the second's context: %+v, %v", got, err)
	}
	undoThird := w.save("demo", "127.0.0.1:3")
	undoSecond()
	if got, err := loadTarget(""); err != nil || got.Name != "demo" {
		t.Errorf("the choice made since: %+v, %v", got, err)
	}
	undoThird()
	if names, current := w.contexts(); len(names) != 0 || current != "" {
		t.Errorf("something is left: %v, current %q", names, current)
	}
}

// TestContextOutlivedByItsPredecessor falls back to no context where the one
// before has gone meanwhile.
func TestContextOutlivedByItsPredecessor(t *testing.T) {
	w := newWorld(t)
	undoDev := w.save("dev", "127.0.0.1:1")
	undoDemo := w.save("demo", "127.0.0.1:2")
	undoDev()
	undoDemo()
	if got, err := loadTarget(""); err != nil || got != (target{}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestContextsAreKnownByName lists what there is when a name is wrong, and
// never reads outside the folder.
func TestContextsAreKnownByName(t *testing.T) {
	w := newWorld(t)
	defer w.save("dev", "127.0.0.1:1")()
	for _, name := range []string{"prod", "../../../etc/passwd"} {
		if _, err := loadTarget(name); err == nil || !strings.Contains(err.Error(), "known: dev") {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.file("config/sightline/contexts/bad.json", "{")
	if r := w.run("", "service", "list", "--context", "bad"); r.code != exitFailure || !strings.Contains(r.errOut, `context "bad" is not readable`) {
		t.Errorf("got %d: %s", r.code, r.errOut)
	}
}

// TestFlagsLieOverTheContext takes single values from flags and the rest from
// the context.
func TestFlagsLieOverTheContext(t *testing.T) {
	w := newWorld(t)
	defer w.save("dev", "127.0.0.1:1")()
	a := &app{override: target{API: "127.0.0.1:9", Key: "other"}}
	got, err := a.target()
	if want := (target{Name: "dev", API: "127.0.0.1:9", Cert: "c", Key: "other", Bundle: "b"}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
}
