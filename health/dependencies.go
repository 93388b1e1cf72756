package health

import (
	"slices"
	"strings"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// defaultKept is the percent of the weight that an instance keeps while a
// dependency is degraded of which its contract says nothing (HEALTH.md §4).
const defaultKept = 50

// need is what the dependencies that an instance calls degraded do to it.
type need struct {
	kept    uint32 // percent of the weight, the lowest of all; 100: nothing is taken
	unready bool   // one of them makes it unready
	names   uint64 // tells sets of names apart; 0: none is named
}

// dependencies weighs the instance's newest word, while that is within its
// silence limit.
func (e *Evaluator) dependencies(i *instance, now time.Time) need {
	n := need{kept: 100}
	if len(i.self.degraded) == 0 || !now.Before(e.silentAt(i, registry.ClassSelf)) {
		return n
	}
	for _, name := range i.self.degraded {
		n.names = mix(n.names, name)
		d := i.terms.dependency(name)
		switch d.Authority {
		case registry.Informational:
		case registry.Unreadiness:
			n.unready = true
		default:
			n.kept = min(n.kept, d.Weight)
		}
	}
	return n
}

// mix adds a name to a set's number (FNV-1a).
func mix(set uint64, name string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	if set == 0 {
		set = offset
	}
	for k := range len(name) {
		set = (set ^ uint64(name[k])) * prime
	}
	return (set ^ 0xff) * prime
}

// dependency is what the contract says of a name; of one that it does not
// declare, the default. A shared one never makes unready: its failure would
// take every replica out at once.
func (t *terms) dependency(name string) registry.Dependency {
	k, ok := slices.BinarySearchFunc(t.dependencies, name, func(d registry.Dependency, name string) int {
		return strings.Compare(d.Name, name)
	})
	if !ok {
		return registry.Dependency{Name: name, Authority: registry.ReduceWeight, Weight: defaultKept}
	}
	d := t.dependencies[k]
	if d.Authority == registry.Unreadiness && d.Shared {
		d.Authority = registry.ReduceWeight
	}
	return d
}

// unready is R2 for a dependency of the instance's own with the authority to
// make it unready.
func (e *Evaluator) unready(i *instance, now time.Time) (finding, bool) {
	if !i.seen.needs.unready {
		return finding{}, false
	}
	i.self.servingSince = time.Time{} // the hold begins when it is well again
	i.outs.set(mark{rule: R2, at: now})
	return finding{state: Ineligible, rule: R2, note: noteUnready}, true
}

// dependent is R2 for dependencies that lower the weight.
func (e *Evaluator) dependent(i *instance, now time.Time) (finding, bool) {
	n := i.seen.needs
	if n.kept >= 100 {
		return finding{}, false
	}
	i.stands = false
	return finding{state: Degraded, rule: R2, note: noteDependency, kept: n.kept}, true
}
