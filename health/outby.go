package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// mark says that a rule took the instance out. It stays until that rule's own
// return, whatever the other rules say meanwhile (HEALTH.md §4).
type mark struct {
	rule Rule
	at   time.Time
	// second: another class agreed, so that the guard must not undo it, and
	// callers' word is not alone.
	second bool
	why    string // the numbers of that moment, where the rule goes by scores
}

// outs are the marks on an instance, oldest first. Nearly always empty.
type outs []mark

func (o outs) has(r Rule) bool { return o.find(r) != nil }

func (o outs) find(r Rule) *mark {
	for k := range o {
		if o[k].rule == r {
			return &o[k]
		}
	}
	return nil
}

// first is the rule that took the instance out before any other did.
func (o outs) first() Rule {
	if len(o) == 0 {
		return NoRule
	}
	return o[0].rule
}

// rules is the set of the rules that have a mark, one bit each.
func (o outs) rules() (set uint16) {
	for k := range o {
		set |= 1 << o[k].rule
	}
	return set
}

// set adds the mark, or notes that a second class agrees with the one that is
// there.
func (o *outs) set(m mark) {
	if there := o.find(m.rule); there != nil {
		there.second = there.second || m.second
		return
	}
	*o = append(*o, m)
}

func (o *outs) clear(r Rule) {
	for k, m := range *o {
		if m.rule == r {
			*o = append((*o)[:k], (*o)[k+1:]...)
			break
		}
	}
	if len(*o) == 0 {
		*o = nil
	}
}

// confirmed reports whether more than one witness took the instance out: a
// lapsed lease, its callers, or two classes (HEALTH.md §8). Silence is nobody's
// word.
func (o outs) confirmed() bool {
	var said registry.ClassSet
	for k := range o {
		m := &o[k]
		if m.second || m.rule == R1 || m.rule == R4 {
			return true
		}
		if m.rule != R6 {
			said = said.With(m.rule.class())
		}
	}
	return said&(said-1) != 0
}

// class is the evidence class that a rule goes by, where that is one.
func (r Rule) class() registry.EvidenceClass {
	switch r {
	case R3, R5:
		return registry.ClassProbe
	case R4:
		return registry.ClassCallers
	default:
		return registry.ClassSelf
	}
}

// returns clears the marks whose rule's return has come, and begins a trial
// where only marks that end by one are left.
func (e *Evaluator) returns(i *instance, now time.Time) {
	for k := 0; k < len(i.outs); {
		m := i.outs[k]
		if at := e.returnAt(i, &m, now); at.IsZero() || now.Before(at) {
			k++
			continue
		}
		i.outs.clear(m.rule)
		if m.rule == R1 {
			i.lease.forgive()
		}
	}
	if at := e.trialAt(i); !at.IsZero() && !now.Before(at) && e.trialMay(i) {
		e.try(i)
	}
}

// returnAt is when a rule's return comes if the evidence goes on as it is, a
// trial aside; zero: not on this evidence.
func (e *Evaluator) returnAt(i *instance, m *mark, now time.Time) time.Time {
	switch m.rule {
	case R1: // one full term of renewals
		if i.lease.resumed.IsZero() || i.draining() {
			return time.Time{}
		}
		return laterOf(i.lease.resumed, i.self.lastDraining).Add(i.row.Lease)
	case R2: // the hold, of SERVING without silence or DRAINING in it
		return e.heldGood(i, registry.ClassSelf, m, now)
	case R3, R5: // the hold, of probes at or under their in-line
		return e.heldGood(i, registry.ClassProbe, m, now)
	case R6: // the hold, of good evidence of a supplied class
		var at time.Time
		for _, c := range classes {
			if by := e.heldGood(i, c, m, now); i.supplies(c) && !by.IsZero() && (at.IsZero() || by.Before(at)) {
				at = by
			}
		}
		return at
	default:
		return time.Time{}
	}
}

// heldGood is the end of the return hold on one class; zero where it is silent
// or not good.
func (e *Evaluator) heldGood(i *instance, c registry.EvidenceClass, m *mark, now time.Time) time.Time {
	if !now.Before(e.silentAt(i, c)) {
		return time.Time{}
	}
	var good time.Time
	switch c {
	case registry.ClassSelf:
		// A run of SERVING knows of every DRAINING and gap that was in it.
		if good = i.self.servingSince; good.IsZero() {
			return time.Time{}
		}
		return good.Add(i.terms.returnHold)
	case registry.ClassProbe:
		good = i.seen.probe.goodSince
	default:
		good = i.callersGood
	}
	if good.IsZero() || i.draining() {
		return time.Time{}
	}
	good = laterOf(laterOf(good, i.quietFrom), laterOf(m.at, i.self.lastDraining))
	return good.Add(i.terms.returnHold)
}
