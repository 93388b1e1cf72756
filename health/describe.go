package health

import (
	"fmt"
	"strings"

	"github.com/sightlinedev/sightline/registry"
)

// describe is the text of a verdict, for a person: the facts that the rule saw
// and what the instance waits for. It holds no moving number, so that it
// changes only when the case does.
func (e *Evaluator) describe(i *instance, n note, fresh registry.ClassSet) string {
	switch n {
	case noteLapsed:
		return fmt.Sprintf("lease of %s not renewed in time; returns after one full term of renewals", i.row.Lease)
	case noteNotServing:
		return fmt.Sprintf("self reports NOT_SERVING; returns after %s of SERVING", i.terms.returnHold)
	case noteHeld:
		return e.describeHold(i)
	case noteSilent:
		return fmt.Sprintf("silent: every supplied class (%s)", classNames(i.profile.Supplies))
	case noteSilentOut:
		return fmt.Sprintf("silent: every supplied class (%s); stays out by %s", classNames(i.profile.Supplies), i.outs.first())
	case noteSuspect:
		return fmt.Sprintf("lease of %s not renewed in time, as of more than %d %% of its service or zone: "+
			"the renewal path is suspect", i.row.Lease, suspectPercent)
	case noteGood, noteDraining:
		return describeClasses(i, fresh)
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
		return "not admitted: self reports NOT_SERVING"
	case noteUnadmittedWaits:
		if i.terms.silence == registry.SilenceIneligible {
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
	var waits []string
	for _, m := range i.outs {
		switch m.rule {
		case R1:
			waits = append(waits, fmt.Sprintf("one full term (%s) of renewals after a lapse", i.row.Lease))
		case R2:
			waits = append(waits, fmt.Sprintf("%s of SERVING after NOT_SERVING", i.terms.returnHold))
		default:
			waits = append(waits, fmt.Sprintf("%s of good evidence after silence", i.terms.returnHold))
		}
	}
	return "held out for " + strings.Join(waits, " and ")
}

// describeClasses lists the supplied classes that speak, and those that do not.
func describeClasses(i *instance, fresh registry.ClassSet) string {
	var parts []string
	for _, c := range classes {
		switch {
		case !i.profile.Supplies.Has(c):
		case c == registry.ClassSelf && !i.self.newest.at.IsZero():
			parts = append(parts, "self reports "+i.self.newest.status.String())
		case !fresh.Has(c):
			parts = append(parts, className(c)+" not heard")
		}
	}
	return strings.Join(parts, "; ")
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
