package demo

import (
	"slices"
	"strings"
	"testing"
)

func held(version string, addresses ...string) map[string]Held {
	return map[string]Held{"cart": {Version: version, Addresses: addresses}}
}

// TestLedgerNoticesBrokenPromises keeps each version that goes back and each
// set that goes empty, and nothing else.
func TestLedgerNoticesBrokenPromises(t *testing.T) {
	for _, c := range []struct {
		why    string
		before map[string]Held
		after  map[string]Held
		want   string
	}{
		{"the next version", held("1.7", "a"), held("1.8", "b"), ""},
		{"the same version", held("1.7", "a"), held("1.7", "a"), ""},
		{"a later epoch", held("1.7", "a"), held("2.1", "a"), ""},
		{"no version is no version", held("1.7", "a"), held("", "a"), ""},
		{"a lower sequence", held("1.10", "a"), held("1.9", "a"), "one saw cart go back from version 1.10 to 1.9"},
		{"a lower epoch", held("2.1", "a"), held("1.99", "a"), "one saw cart go back from version 2.1 to 1.99"},
		{"an empty set", held("1.7", "a"), held("1.8"), "one was left without any address of cart"},
		{"empty from the start", held("1.7"), held("1.8"), ""},
	} {
		l := newLedger()
		l.add(Sample{Caller: "one", Held: c.before})
		l.add(Sample{Caller: "other", Held: c.after})
		l.add(Sample{Caller: "one", Held: c.after})
		if got := strings.Join(l.violations(), "; "); got != c.want {
			t.Errorf("%s: got %q, want %q", c.why, got, c.want)
		}
	}
}

// TestLedgerRemembersTheHighestVersion does not let a caller go back in two steps.
func TestLedgerRemembersTheHighestVersion(t *testing.T) {
	l := newLedger()
	for _, v := range []string{"1.9", "", "1.8"} {
		l.add(Sample{Caller: "one", Held: held(v, "a")})
	}
	if got := l.violations(); len(got) != 1 {
		t.Errorf("got %q", got)
	}
}

// TestLedgerCountsFailuresByCause sets those while starting apart, and lists
// the rest, the most frequent first.
func TestLedgerCountsFailuresByCause(t *testing.T) {
	l := newLedger()
	l.add(Sample{Caller: "one", OK: 5, Failed: 2, Errors: map[string]int{"cold": 2}, P99: 9})
	if got := l.settle(); got != 2 {
		t.Errorf("%d failed while starting", got)
	}
	if got := l.failures(); len(got) != 0 {
		t.Errorf("those while starting are still counted: %q", got)
	}
	l.add(Sample{Caller: "one", OK: 3, Failed: 1, Errors: map[string]int{"refused": 1}, P99: 2})
	l.add(Sample{Caller: "two", OK: 1, Failed: 3, Errors: map[string]int{"reset": 3}, P99: 4})
	ok, failed, p99 := l.totals()
	if ok != 9 || failed != 4 || p99 != 4 {
		t.Errorf("ok %d, failed %d, p99 %v", ok, failed, p99)
	}
	if got, want := l.failures(), []string{"3 x two: reset", "1 x one: refused"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if l.reporting() != 2 {
		t.Errorf("%d callers report", l.reporting())
	}
}

// TestLedgerComparesSets names who holds an address and whose set differs.
func TestLedgerComparesSets(t *testing.T) {
	l := newLedger()
	l.add(Sample{Caller: "one", Held: held("1.1", "b", "a")})
	l.add(Sample{Caller: "two", Held: held("1.1", "a")})
	if got := l.holders("cart", "b"); !slices.Equal(got, []string{"one"}) {
		t.Errorf("holders %q", got)
	}
	if got := l.disagreeing("cart", []string{"a", "b"}); !slices.Equal(got, []string{"two holds [a] of cart"}) {
		t.Errorf("disagreeing %q", got)
	}
}

// TestOlderThan compares numbers, not text, and calls nothing older that is no
// version.
func TestOlderThan(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"1.9", "1.10", true}, {"1.10", "1.9", false}, {"1.9", "1.9", false}, {"1.99", "2.0", true},
		{"", "1.1", false}, {"1.1", "", false}, {"x.1", "1.1", false}, {"1", "1.1", false},
	} {
		if got := olderThan(c.a, c.b); got != c.want {
			t.Errorf("olderThan(%q, %q) = %v", c.a, c.b, got)
		}
	}
}
