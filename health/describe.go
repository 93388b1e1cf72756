package health

import (
	"fmt"
	"strings"

	"github.com/sightlinedev/sightline/registry"
)

// describe is the text of a verdict, for a person: the facts that the rule saw
// and what the instance waits for. It is made when the case changes, with the
// numbers of that moment.
func (e *Evaluator) describe(i *instance, n note) string {
	text := e.describeNote(i, n)
	if w := &i.waits; w.what != NoWait {
		text += "; " + describeWait(w)
	}
	return text
}

func (e *Evaluator) describeNote(i *instance, n note) string {
	switch n {
	case noteLapsed:
		return fmt.Sprintf("lease of %s not renewed in time; returns after one full term of renewals", i.row.Lease)
	case noteNotServing:
		return fmt.Sprintf("self reports NOT_SERVING; returns after %s of SERVING", i.terms.returnHold)
	case noteUnready:
		return fmt.Sprintf("self reports %s degraded, which makes it unready; returns after %s without",
			i.degradedNames(registry.Unreadiness), i.terms.returnHold)
	case noteHeld:
		return e.describeHold(i)
	case noteSilent:
		return fmt.Sprintf("silent: every supplied class (%s)", classNames(i.profile.Supplies))
	case noteSilentOut:
		return fmt.Sprintf("silent: every supplied class (%s); stays out by %s", classNames(i.profile.Supplies), i.outs.first())
	case noteSuspect:
		return fmt.Sprintf("lease of %s not renewed in time, as of more than %d %% of its service or zone: "+
			"the renewal path is suspect", i.row.Lease, suspectPercent)
	case noteDependency:
		return fmt.Sprintf("self reports %s degraded: %d %% of the weight", i.degradedNames(registry.ReduceWeight), i.seen.needs.kept)
	case noteProbeOnly:
		return fmt.Sprintf("%s, and its callers are content: %d %% of the weight", i.probeNumbers(), observedKept)
	case noteApplication:
		return fmt.Sprintf("%s, all of them stock gRPC clients, whose counts hold application errors: %d %% of the weight",
			i.callersNumbers(), observedKept)
	case noteGood, noteDraining:
		return describeClasses(i)
	case noteUnheard:
		return fmt.Sprintf("nothing heard yet of %s, and not yet silent", classNames(i.profile.Supplies))
	case noteExistence:
		return "no evidence class is supplied: eligible on existence alone"
	default:
		return e.describeUnadmitted(i, n)
	}
}

func (e *Evaluator) describeUnadmitted(i *instance, n note) string {
	switch n {
	case noteUnproved:
		return "not admitted: its address is not proved"
	case noteUnadmittedLapsed:
		return fmt.Sprintf("not admitted: lease of %s not renewed in time", i.row.Lease)
	case noteUnadmittedDraining:
		return "not admitted: draining"
	case noteUnadmittedNotServing:
		if i.seen.needs.unready {
			return fmt.Sprintf("not admitted: self reports %s degraded", i.degradedNames(registry.Unreadiness))
		}
		return "not admitted: self reports NOT_SERVING"
	case noteUnadmittedBad:
		return "not admitted: " + i.badNumbers()
	case noteUnadmittedRetry:
		return fmt.Sprintf("not admitted: failed within its first ramp (%s: %s); tried again after %s",
			i.retry.rule, i.retry.why, i.retry.again().Sub(i.retry.at))
	case noteUnadmittedWaits:
		if i.silenceTakesOut() {
			return fmt.Sprintf("not admitted: waits for first good evidence of %s", classNames(i.profile.Supplies))
		}
		return fmt.Sprintf("not admitted: waits for first good evidence of %s, or %s of silence",
			classNames(i.profile.Supplies), admissionSilence)
	default:
		return "not admitted"
	}
}

// describeHold says what each rule that took the instance out waits for.
func (e *Evaluator) describeHold(i *instance) string {
	if m := &i.outs[0]; len(i.outs) == 1 && m.why != "" {
		return m.why + "; " + e.describeReturn(i, m)
	}
	var waits []string
	for k := range i.outs {
		m := &i.outs[k]
		switch m.rule {
		case R1:
			waits = append(waits, fmt.Sprintf("one full term (%s) of renewals after a lapse", i.row.Lease))
		case R2:
			waits = append(waits, fmt.Sprintf("%s of SERVING after NOT_SERVING", i.terms.returnHold))
		case R6:
			waits = append(waits, fmt.Sprintf("%s of good evidence after silence", i.terms.returnHold))
		default:
			waits = append(waits, fmt.Sprintf("%s (%s: %s)", e.waitsFor(i, m), m.rule, m.why))
		}
	}
	return "held out for " + strings.Join(waits, " and ")
}

func (e *Evaluator) describeReturn(i *instance, m *mark) string {
	if e.byTrial(i, m) {
		return fmt.Sprintf("returns by a trial %s after it", i.terms.returnHold)
	}
	return "returns after " + e.waitsFor(i, m)
}

// waitsFor is what a withdrawal by observation waits for.
func (e *Evaluator) waitsFor(i *instance, m *mark) string {
	if e.byTrial(i, m) {
		return fmt.Sprintf("a trial %s after it", i.terms.returnHold)
	}
	return fmt.Sprintf("%s of probes at or under %.2f", i.terms.returnHold, i.terms.probes.in)
}

// describeCharge holds the numbers that R3, R4 or R5 saw.
func (e *Evaluator) describeCharge(i *instance, c charge) string {
	text := ""
	switch c.rule {
	case R3:
		text = e.refusedNumbers(i)
	case R4:
		text = i.callersNumbers()
	default:
		text = i.probeNumbers()
	}
	if c.second && c.rule != R3 {
		text += "; a second class agrees"
	}
	return text
}

func (e *Evaluator) refusedNumbers(i *instance) string {
	by := []string{fmt.Sprintf("%d of %d probers", i.seen.probe.refusedBy, i.seen.probe.live)}
	if n := i.seen.callers.refusedBy; n > 0 {
		by = append(by, fmt.Sprintf("%d callers", n))
	}
	text := "connections refused: by " + strings.Join(by, " and by ")
	if i.seen.bad.Has(registry.ClassCallers) {
		text += "; " + i.callersNumbers()
	}
	if i.lease.ended {
		text += fmt.Sprintf("; lease of %s not renewed in time", i.row.Lease)
	}
	return text
}

func (i *instance) callersNumbers() string {
	r := &i.seen.callers
	return fmt.Sprintf("callers: score %.2f ≥ %.2f, %.2f above its siblings, %d of %d reporters against, %.0f samples",
		r.score, i.terms.callers.out, r.excess, r.against, r.counting, r.samples)
}

func (i *instance) probeNumbers() string {
	r := &i.seen.probe
	return fmt.Sprintf("probe: score %.2f ≥ %.2f, %d probers speak, %.0f samples",
		r.score, i.terms.probes.out, r.live, r.samples)
}

// badNumbers names the supplied classes that are over their lines.
func (i *instance) badNumbers() string {
	var parts []string
	for _, c := range classes {
		switch {
		case !i.seen.bad.Has(c):
		case c == registry.ClassProbe:
			parts = append(parts, i.probeNumbers())
		case c == registry.ClassCallers:
			parts = append(parts, i.callersNumbers())
		default:
			parts = append(parts, "self reports NOT_SERVING")
		}
	}
	return strings.Join(parts, "; ")
}

// describeWait says why a withdrawal is held back.
func describeWait(w *waiting) string {
	if w.what == WaitsBrake {
		return fmt.Sprintf("withdrawal by %s waits for the region's brake (%s)", w.rule, w.why)
	}
	return fmt.Sprintf("withdrawal by %s waits: callers' word holds out a third of the service (%s)", w.rule, w.why)
}

// degradedNames lists what the instance calls degraded and has that authority.
func (i *instance) degradedNames(a registry.DependencyAuthority) string {
	var names []string
	for _, name := range i.self.degraded {
		if i.terms.dependency(name).Authority == a {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// describeClasses lists what the supplied classes say, also where they disagree.
func describeClasses(i *instance) string {
	var parts []string
	for _, c := range classes {
		if i.supplies(c) {
			parts = append(parts, describeClass(i, c))
		}
	}
	if names := i.degradedNames(registry.Informational); names != "" && i.seen.needs.names != 0 {
		parts = append(parts, "self reports "+names+" degraded, for information")
	}
	return strings.Join(parts, "; ")
}

func describeClass(i *instance, c registry.EvidenceClass) string {
	switch {
	case c == registry.ClassSelf && !i.self.newest.at.IsZero():
		return "self reports " + i.self.newest.status.String()
	case !i.seen.fresh.Has(c):
		return className(c) + " not heard"
	case i.seen.bad.Has(c) && i.waits.what != NoWait:
		return className(c) + " over its line" // what waits holds the numbers
	case c == registry.ClassProbe && i.seen.bad.Has(c):
		return i.probeNumbers()
	case c == registry.ClassCallers && i.seen.bad.Has(c):
		return i.callersNumbers()
	case c == registry.ClassCallers && !i.primacy.callers && !i.trial.onCallersWord:
		return "callers not over their line, and too few to decide"
	default:
		return className(c) + " not over its line"
	}
}

// describeRemoval is the text of a removal in the transition log.
func describeRemoval(why registry.Removal) string {
	switch why {
	case registry.RemovedByList:
		return "its authority's complete list no longer has it"
	case registry.Deregistered:
		return "deregistered itself"
	case registry.RemovedByOperator:
		return "removed by an operator"
	case registry.AddressTaken:
		return "another identity proved its address"
	case registry.LapsedOut:
		return "its lease lapsed, and the time that it stays a member after that is over"
	case registry.ServiceDeleted:
		return "its service was deleted"
	default:
		return "removed"
	}
}
