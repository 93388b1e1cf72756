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
}

// outs are the marks on an instance, oldest first. Nearly always empty.
type outs []mark

func (o outs) has(r Rule) bool {
	for _, m := range o {
		if m.rule == r {
			return true
		}
	}
	return false
}

// first is the rule that took the instance out before any other did.
func (o outs) first() Rule {
	if len(o) == 0 {
		return NoRule
	}
	return o[0].rule
}

func (o *outs) set(r Rule, now time.Time) {
	if !o.has(r) {
		*o = append(*o, mark{r, now})
	}
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

// returns clears the marks whose rule's return has come.
func (e *Evaluator) returns(i *instance, now time.Time) {
	for _, m := range append(outs(nil), i.outs...) {
		if at := e.returnAt(i, m.rule, now); !at.IsZero() && !now.Before(at) {
			i.outs.clear(m.rule)
			if m.rule == R1 {
				i.lease.forgive()
			}
		}
	}
}

// returnAt is when a rule's return comes if the evidence goes on as it is;
// zero: not on this evidence.
func (e *Evaluator) returnAt(i *instance, r Rule, now time.Time) time.Time {
	switch r {
	case R1: // one full term of renewals
		if i.lease.resumed.IsZero() || i.draining() {
			return time.Time{}
		}
		return laterOf(i.lease.resumed, i.self.lastDraining).Add(i.row.Lease)
	case R2: // the hold, of SERVING without silence or DRAINING in it
		return e.heldGood(i, now)
	case R6: // the hold, of good evidence of a supplied class
		if !i.profile.Supplies.Has(registry.ClassSelf) {
			return time.Time{}
		}
		return e.heldGood(i, now)
	default:
		return time.Time{}
	}
}

// heldGood is the end of the return hold on the instance's own word.
func (e *Evaluator) heldGood(i *instance, now time.Time) time.Time {
	if i.self.servingSince.IsZero() || !now.Before(e.silentAt(i, registry.ClassSelf)) {
		return time.Time{}
	}
	return i.self.servingSince.Add(i.terms.returnHold)
}
