package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	callersSilence = 10 * time.Second
	// callersSilenceAtStart: a grpc-go report stream came back 21 s after an
	// outage of 16 s (HEALTH.md §1).
	callersSilenceAtStart = 30 * time.Second
)

var classes = [...]registry.EvidenceClass{registry.ClassProbe, registry.ClassSelf, registry.ClassCallers}

// silentAt is the moment from which the class counts as silent for the
// instance if it gives no further sample: its limit after the latest of the
// last sample, birth, own start, own gap, and the moment from which it is supplied.
func (e *Evaluator) silentAt(i *instance, c registry.EvidenceClass) time.Time {
	from := laterOf(i.heard(c), i.quietFrom)
	if i.gained.Has(c) {
		from = laterOf(from, i.gainedAt)
	}
	switch c {
	case registry.ClassSelf:
		return from.Add(i.self.silence())
	case registry.ClassProbe:
		return i.probesSilentAt(from)
	default:
		return laterOf(from.Add(callersSilence), i.startLimit)
	}
}

// probesSilentAt follows the cadence: 7 s from a switch to the full one, for
// probes that were 10 s apart before it.
func (i *instance) probesSilentAt(from time.Time) time.Time {
	slow, full := i.terms.probeSilence(true), i.terms.probeSilence(false)
	switch strict := i.cadence.strictAt(i.terms); {
	case i.cadence.confirming:
		return from.Add(slow)
	case strict.IsZero():
		return from.Add(full)
	case from.Add(slow).Before(strict):
		return laterOf(from.Add(slow), from.Add(full))
	default:
		return laterOf(strict, from.Add(full))
	}
}

// isFresh reports whether the class has given a sample, and is not silent.
func (e *Evaluator) isFresh(i *instance, c registry.EvidenceClass, now time.Time) bool {
	return !i.heard(c).IsZero() && now.Before(e.silentAt(i, c))
}

// allSilent reports whether every supplied class is silent, and from when.
// Where none is supplied, none can be.
func (e *Evaluator) allSilent(i *instance, now time.Time) (since time.Time, silent bool) {
	if i.profile.Supplies == 0 {
		return time.Time{}, false
	}
	for _, c := range classes {
		if !i.profile.Supplies.Has(c) {
			continue
		}
		at := e.silentAt(i, c)
		if now.Before(at) {
			return time.Time{}, false
		}
		since = laterOf(since, at)
	}
	return since, true
}

// silenceTakesOut reports whether silence of every class makes the instance
// ineligible, by its contract. Where callers alone are supplied it does not: nobody
// calls what is out or was never in, so nothing could ever bring it back.
func (i *instance) silenceTakesOut() bool {
	callers := registry.ClassSet(0).With(registry.ClassCallers)
	return i.terms.silence == registry.SilenceIneligible && i.profile.Supplies&^callers != 0
}

// className is how a person reads an evidence class.
func className(c registry.EvidenceClass) string {
	switch c {
	case registry.ClassProbe:
		return "probe"
	case registry.ClassSelf:
		return "self"
	default:
		return "callers"
	}
}

// classNames lists a set for a person: probe, self.
func classNames(s registry.ClassSet) string {
	text := ""
	for _, c := range classes {
		if !s.Has(c) {
			continue
		}
		if text != "" {
			text += ", "
		}
		text += className(c)
	}
	return text
}
