package health

import (
	"time"

	"github.com/sightlinedev/sightline/registry"
)

// Observers judges what spans services: blind probers, dead zones and the
// region's brake (HEALTH.md §6). It is pure, and not safe for concurrent use:
// one loop owns it, which shards feed with tallies.
type Observers struct{}

// NewObservers returns observers that suspect nobody.
func NewObservers() *Observers { return &Observers{} }

// Take replaces what the services of the tallies last said. It may be called
// any number of times between two judgements.
func (o *Observers) Take(now time.Time, tallies []Tally) {}

// Forget drops a service that is gone.
func (o *Observers) Forget(name registry.Name) {}

// Judge says what the observers make of themselves now: an immutable stance,
// whether it differs from the last one, and what a person should hear of.
func (o *Observers) Judge(now time.Time) (stance *Stance, changed bool, incidents []ObserverIncident) {
	return &Stance{}, false, nil
}

// ReleaseBrake is an operator's word that what waits may go. It reports whether
// the brake was engaged; for a minute it does not engage again.
func (o *Observers) ReleaseBrake(now time.Time) bool { return false }
