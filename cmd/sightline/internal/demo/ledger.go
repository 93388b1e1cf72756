package demo

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ledger is what the callers have reported: the newest holdings, the totals,
// and every broken promise.
type ledger struct {
	mu         sync.Mutex
	last       map[string]Sample    // by caller
	at         map[string]time.Time // by caller: when the last sample came
	newest     map[string]string    // by caller and service: the highest version ever held
	ok, failed int
	starting   int     // calls that failed before settle
	p99        float64 // worst of the newest samples
	errors     map[string]int
	broken     []string         // versions that went back, sets that went empty
	counts     map[string]Event // by instance: the newest
}

func newLedger() *ledger {
	return &ledger{last: map[string]Sample{}, at: map[string]time.Time{}, newest: map[string]string{}, errors: map[string]int{}, counts: map[string]Event{}}
}

// add takes one sample, and checks at once what must never happen: a version
// that goes back, and a set that goes empty.
func (l *ledger) add(s Sample) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.last[s.Caller]
	for service, h := range s.Held {
		key := s.Caller + " " + service
		if h.Version != "" && olderThan(h.Version, l.newest[key]) {
			l.broken = append(l.broken, fmt.Sprintf("%s saw %s go back from version %s to %s", s.Caller, service, l.newest[key], h.Version))
		} else if h.Version != "" {
			l.newest[key] = h.Version
		}
		if len(h.Addresses) == 0 && len(before.Held[service].Addresses) > 0 {
			l.broken = append(l.broken, fmt.Sprintf("%s was left without any address of %s", s.Caller, service))
		}
	}
	l.last[s.Caller], l.at[s.Caller] = s, time.Now()
	l.ok += s.OK
	l.failed += s.Failed
	for text, n := range s.Errors {
		l.errors[s.Caller+": "+text] += n
	}
	l.p99 = 0
	for _, s := range l.last {
		l.p99 = max(l.p99, s.P99)
	}
}

// count takes what an instance has answered so far.
func (l *ledger) count(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[e.Instance] = e
}

// answered returns how many calls each instance has answered one caller so far.
func (l *ledger) answered(caller string) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]int, len(l.counts))
	for name, e := range l.counts {
		out[name] = e.Calls[caller]
	}
	return out
}

// connections returns how many connections of a caller an instance has seen.
func (l *ledger) connections(instance, caller string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[instance].Conns[caller]
}

// olderThan compares versions epoch.seq; what is not one is never older.
func olderThan(a, b string) bool {
	ae, as, ok1 := splitVersion(a)
	be, bs, ok2 := splitVersion(b)
	return ok1 && ok2 && (ae < be || ae == be && as < bs)
}

func splitVersion(v string) (epoch, seq uint64, ok bool) {
	e, s, _ := strings.Cut(v, ".")
	epoch, err1 := strconv.ParseUint(e, 10, 64)
	seq, err2 := strconv.ParseUint(s, 10, 64)
	return epoch, seq, err1 == nil && err2 == nil
}

// settle sets the failures apart that happened while things came up: from here
// on each counts. It returns how many those were.
func (l *ledger) settle() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.starting += l.failed
	l.failed, l.errors = 0, map[string]int{}
	return l.starting
}

// totals returns the calls so far; failed are those since settle.
func (l *ledger) totals() (ok, failed int, p99 float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ok, l.failed, l.p99
}

// holders lists the callers whose set of the service holds the address.
func (l *ledger) holders(service, address string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, s := range l.last {
		if slices.Contains(s.Held[service].Addresses, address) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// disagreeing lists the callers whose set of the service is not the one given,
// with what they hold.
func (l *ledger) disagreeing(service string, want []string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	want = slices.Sorted(slices.Values(want))
	for name, s := range l.last {
		got := slices.Sorted(slices.Values(s.Held[service].Addresses))
		if !slices.Equal(got, want) {
			out = append(out, fmt.Sprintf("%s holds %v of %s", name, got, service))
		}
	}
	slices.Sort(out)
	return out
}

// reporting returns how many callers have reported within the last second.
func (l *ledger) reporting() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.at {
		if time.Since(at) < time.Second {
			n++
		}
	}
	return n
}

// failures lists what calls failed of since settle, the most frequent first.
func (l *ledger) failures() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	causes := slices.SortedFunc(maps.Keys(l.errors), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.errors[b], l.errors[a]), cmp.Compare(a, b))
	})
	for i, cause := range causes {
		causes[i] = fmt.Sprintf("%d x %s", l.errors[cause], cause)
	}
	return causes
}

// violations returns the promises broken so far.
func (l *ledger) violations() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.broken)
}
