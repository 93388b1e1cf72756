package health

import (
	"time"
)

const (
	selfInterval    = 2 * time.Second // how often instances report (DESIGN.md §1)
	maxSelfInterval = time.Minute
	minSelfSilence  = 6 * time.Second
	// futureSlack and maxSampleAge bound what a reporter's stated age may do:
	// a report from the future or from before an outage says nothing of now.
	futureSlack  = time.Second
	maxSampleAge = time.Minute
)

// word is one self-report: when, and what.
type word struct {
	at     time.Time
	status SelfStatus
}

// newer orders words by time; of one moment, the more cautious is the newer.
func (w word) newer(o word) bool {
	if w.at.Equal(o.at) {
		return w.status > o.status
	}
	return w.at.After(o.at)
}

// selfWord is the self class: the newest report speaks.
type selfWord struct {
	newest       word
	lastServing  time.Time
	lastDraining time.Time
	// servingSince is the first report of the unbroken run of SERVING that the
	// newest belongs to; zero when it is none, and after an own gap.
	servingSince time.Time
	interval     time.Duration
	degraded     []string
}

// silence is how long the class may be quiet.
func (w *selfWord) silence() time.Duration {
	return max(minSelfSilence, 3*min(w.interval, maxSelfInterval))
}

func (w *selfWord) draining() bool {
	return !w.lastDraining.IsZero() && !w.lastServing.After(w.lastDraining)
}

// forget drops what was said, so that silence alone is left; whether it said
// that it goes stays known.
func (w *selfWord) forget() {
	w.newest, w.servingSince, w.degraded = word{}, time.Time{}, nil
}

// hear records one report. Reports may come late: the newest still speaks, and
// a late word against the instance only shortens a run of SERVING. No run is
// counted from before quietFrom: nobody saw whether it was unbroken.
func (w *selfWord) hear(s *Sample, quietFrom time.Time) {
	heard := word{s.At, s.Status}
	switch s.Status {
	case Serving:
		w.lastServing = laterOf(w.lastServing, s.At)
	case Draining:
		w.lastDraining = laterOf(w.lastDraining, s.At)
	}
	if !heard.newer(w.newest) {
		if s.Status != Serving && !w.servingSince.IsZero() && !s.At.Before(w.servingSince) {
			w.servingSince = w.newest.at
		}
		return
	}
	switch {
	case s.Status != Serving:
		w.servingSince = time.Time{}
	case w.servingSince.IsZero() || s.At.Sub(w.newest.at) > w.silence():
		w.servingSince = laterOf(s.At, quietFrom)
	}
	w.newest = heard
	w.interval = s.Interval
	w.degraded = s.Degraded
}
