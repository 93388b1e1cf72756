package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// Stance is what the region's observers make of themselves (HEALTH.md §6): an
// immutable value that every evaluator reads. A nil Stance suspects nobody.
type Stance struct {
	// Blind names the probers whose samples are silence.
	Blind map[string]bool
	// Silenced names probers that were blind, with the time until when: what they
	// said up to then stays silence. Entries go after five minutes.
	Silenced map[string]time.Time
	// Dead holds the zones that all probers outside fail, while those see their
	// other zones good, with the time since when.
	Dead map[string]time.Time
	// Leaving holds the zones that have been dead for 7 s: the targets of the
	// probers that stand in them are reassigned.
	Leaving map[string]bool
	// Braked: withdrawals by observation wait (R3–R5), unless a second class
	// agrees.
	Braked bool
	// BrakedSince is when the brake engaged; BrakeDetail its numbers.
	BrakedSince time.Time
	BrakeDetail string
	// Released holds the zones whose withdrawals the brake lets pass: probers in
	// two other zones agree.
	Released map[string]bool
}

// blind reports whether the prober's samples are silence.
func (s *Stance) blind(p Prober) bool { return s != nil && s.Blind[p.Name] }

// silenced is the time up to which the prober's samples stay silence; zero: none do.
func (s *Stance) silenced(p Prober) time.Time {
	if s == nil {
		return time.Time{}
	}
	return s.Silenced[p.Name]
}

// dead reports since when the zone is dead; zero: it is not.
func (s *Stance) dead(zone string) time.Time {
	if s == nil {
		return time.Time{}
	}
	return s.Dead[zone]
}

// brakes reports whether a withdrawal by observation in the zone has to wait.
func (s *Stance) brakes(zone string) bool {
	return s != nil && s.Braked && !s.Released[zone]
}

// Tally is what one service tells the region's observers each tick. What it
// holds is shared: nobody changes it.
type Tally struct {
	Name    registry.Name
	Members int
	// Withdrawn counts the members that R3–R5 took out since the tally before,
	// by zone.
	Withdrawn map[string]int
	// Waiting counts the members whose withdrawal waits for the brake, by zone.
	Waiting map[string]int
	// Probes counts the targets of a prober in a zone, by Cells. Counted is when
	// they last changed: two tallies of a service with one Counted hold the same.
	Cells   []ProbeCell
	Probes  []ProbeCount
	Counted time.Time
}

// ProbeCell is a prober and the zone that it looks at.
type ProbeCell struct {
	Prober Prober
	Zone   string
}

// ProbeCount counts targets by their newest results.
type ProbeCount struct {
	Targets int
	Failing int // time-outs and unreachables, not refusals
	Good    int
	// Recent and RecentFailing count those whose newest result is not older than
	// 4 s: targets at a slow cadence say late that a prober sees nothing.
	Recent, RecentFailing int
	// Contested and Agreed count the failing that a prober of another zone saw
	// good at that time, and those that it sees failing too.
	Contested, Agreed int
}

// ObserverIncidentKind is what an incident of the region's observers is about.
type ObserverIncidentKind uint8

// The incidents that the region's observers raise.
const (
	BlindProbers ObserverIncidentKind = iota
	DeadZone
	BrakeEngaged
)

var observerIncidentNames = [...]string{"blind-probers", "dead-zone", "brake"}

// String is the incident's name in logs and metrics.
func (k ObserverIncidentKind) String() string { return observerIncidentNames[k] }

// ObserverIncident is something that a person should hear of: once when an
// episode begins, and once when it is over.
type ObserverIncident struct {
	Kind   ObserverIncidentKind
	Zone   string // of the blind probers, or the dead one; empty: the region
	Over   bool   // the episode ended; no alarm
	Detail string // the numbers
	At     time.Time
}
