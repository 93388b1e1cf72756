package registry_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sightlinedev/sightline/registry"
)

func probersOf(zones ...string) registry.Probers {
	var p registry.Probers
	for i, z := range zones {
		p = p.With(registry.Prober{Name: fmt.Sprintf("p%d", i), Zone: z})
	}
	return p
}

// TestAssignedSpreadsOverZones: as many zones as there are, as many probers as
// are asked for, and the first ones are those of a smaller number.
func TestAssignedSpreadsOverZones(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 12).Draw(t, "zones")
		p := probersOf(zones...)
		uid := registry.UID(rapid.Uint64Min(1).Draw(t, "uid"))
		n := rapid.IntRange(0, 5).Draw(t, "n")
		got := p.Assigned(uid, n)
		if want := min(n, registry.MaxProbers, len(zones)); len(got) != want {
			t.Fatalf("%d probers of %d, want %d", len(got), len(zones), want)
		}
		seen := make(map[string]bool)
		for i, x := range got {
			if slices.Contains(got[:i], x) {
				t.Fatalf("%v twice in %v", x, got)
			}
			seen[x.Zone] = true
			if !p.Assigns(uid, n, x.Name) {
				t.Fatalf("%v is assigned, and Assigns says no", x)
			}
		}
		if len(seen) != min(len(got), p.Zones()) {
			t.Fatalf("%v covers %d zones of %d", got, len(seen), p.Zones())
		}
		if n > 0 {
			fewer := p.Assigned(uid, n-1)
			if !slices.Equal(fewer, got[:len(fewer)]) {
				t.Fatalf("%v for %d, %v for %d", fewer, n-1, got, n)
			}
		}
		for x := range p.All() {
			if p.Assigns(uid, n, x.Name) != slices.Contains(got, x) {
				t.Fatalf("Assigns and Assigned differ about %v in %v", x, got)
			}
		}
	})
}

// TestAProberMovesOnlyItsShare: when one comes, an instance has either the same
// probers as before or that one in the place of exactly one; and it does not
// matter in which order they came.
func TestAProberMovesOnlyItsShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 1, 9).Draw(t, "zones")
		n := rapid.IntRange(1, registry.MaxProbers).Draw(t, "n")
		uid := registry.UID(rapid.Uint64Min(1).Draw(t, "uid"))
		before := probersOf(zones...)
		comes := registry.Prober{Name: "new", Zone: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "zone")}
		was, is := before.Assigned(uid, n), before.With(comes).Assigned(uid, n)
		left := 0
		for _, x := range was {
			if !slices.Contains(is, x) {
				left++
			}
		}
		if taken := slices.Contains(is, comes); left > 1 || !taken && left > 0 {
			t.Fatalf("%v became %v", was, is)
		}
		again := before.With(comes).Without("p0").With(registry.Prober{Name: "p0", Zone: zones[0]}).Assigned(uid, n)
		if !slices.Equal(is, again) {
			t.Fatalf("the same set gave %v and %v", is, again)
		}
		if back := before.With(comes).Without("new").Assigned(uid, n); !slices.Equal(was, back) {
			t.Fatalf("%v, and %v after one came and went", was, back)
		}
	})
}

// TestSharesAreEven: of 60,000 instances each of six probers in three zones has
// a third, give or take a twentieth of it.
func TestSharesAreEven(t *testing.T) {
	p := probersOf("a", "b", "c", "a", "b", "c")
	share := make(map[string]int)
	const instances = 60_000
	for uid := registry.UID(1 << 40); uid < 1<<40+instances; uid++ {
		for _, x := range p.Assigned(uid, 2) {
			share[x.Name]++
		}
	}
	for name, n := range share {
		if want := instances / 3; n < want*19/20 || n > want*21/20 {
			t.Errorf("%s has %d of %d", name, n, instances)
		}
	}
}

// TestASetStaysAsItWas: With and Without leave the set that they are asked of.
func TestASetStaysAsItWas(t *testing.T) {
	p := probersOf("a", "b")
	q := p.With(registry.Prober{Name: "p0", Zone: "c"})
	if x, ok := q.Get("p0"); !ok || x.Zone != "c" || q.Len() != 2 || q.Zones() != 2 {
		t.Errorf("moved: %v", slices.Collect(q.All()))
	}
	r := q.Without("p1").Without("p9")
	if x, ok := p.Get("p0"); !ok || x.Zone != "a" || p.Len() != 2 || r.Len() != 1 {
		t.Errorf("before %v, after %v", slices.Collect(p.All()), slices.Collect(r.All()))
	}
	if _, ok := r.Get("p1"); ok {
		t.Error("p1 is still there")
	}
	if got := (registry.Probers{}).Assigned(7, 2); len(got) != 0 {
		t.Errorf("nobody, and yet %v", got)
	}
	if n := testing.AllocsPerRun(100, func() { p.Assigns(17, 3, "p1") }); n != 0 {
		t.Errorf("Assigns allocates %v times", n)
	}
}
