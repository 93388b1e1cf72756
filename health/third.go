package health

import (
	"slices"

	"github.com/sightlinedev/sightline/registry"
)

// Third is how much of a service callers' word alone holds out (HEALTH.md §2).
type Third struct {
	Out     int // members that it holds out, those in quarantine too
	Most    int // members that it may hold out
	Members int
	Kept    []registry.UID // who stays in because of it, ascending
}

// recount notes whether the instance is one that callers' word alone, or a
// quarantine, holds out, and whether callers sent it back to its admission.
func (e *Evaluator) recount(i *instance) {
	held := i.member && (i.quarantine.runs() || len(i.outs) == 1 && i.outs[0].rule == R4 &&
		!i.outs[0].second && !i.otherBad(registry.ClassCallers))
	move(&i.heldOut, held, &e.heldOut)
	move(&i.sentBack, !i.member && i.retry.rule == R4, &e.sentBack)
}

// move keeps a count of the instances for which a flag holds.
func move(flag *bool, to bool, count *int) {
	if *flag == to {
		return
	}
	*flag = to
	if to {
		*count++
	} else {
		*count--
	}
}

// thirds counts without naming who is kept.
func (e *Evaluator) thirds() Third {
	t := Third{Out: e.heldOut, Members: e.members}
	if e.full == 0 {
		t.Out += e.sentBack
		t.Members += e.sentBack
	}
	t.Most = max(1, t.Members/3)
	return t
}

// CallersThird tells how much of the service callers' word alone holds out.
func (e *Evaluator) CallersThird() Third {
	t := e.thirds()
	for uid, i := range e.instances {
		if i.waits.what == WaitsThird {
			t.Kept = append(t.Kept, uid)
		}
	}
	slices.Sort(t.Kept)
	return t
}
