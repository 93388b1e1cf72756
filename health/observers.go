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
	// Dead holds the zones that all probers outside fail, while those see their
	// other zones good, with the time since when.
	Dead map[string]time.Time
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

// Tally is what one service tells the region's observers each tick.
type Tally struct {
	Name    registry.Name
	Members int
	// Withdrawn counts the members that R3–R5 took out since the tally before,
	// by zone.
	Withdrawn map[string]int
	Probes    map[ProbeCell]ProbeCount
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
}
