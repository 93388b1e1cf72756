package health

import (
	"fmt"
	"time"

	"github.com/sightlinedev/sightline/registry"
)

const (
	// The brake's line: withdrawals by observation pass 20 % of the region's
	// members, with 50 instances and 3 services at least, within a minute
	// (HEALTH.md §6).
	brakePercent   = 20
	brakeInstances = 50
	brakeServices  = 3
	brakeWindow    = time.Minute
)

// brake holds withdrawals by observation when they come in masses. It lets go
//
//   - one instance, when a second class agrees: the evaluator's to see;
//   - a zone, when probers in two other zones agree that it is down while they
//     see their other zones good (Stance.Released);
//   - everything, at an operator's word; for a minute it does not engage again;
//   - everything, by itself, when nothing has waited for it for a minute and the
//     withdrawals of the last minute are below the line.
//
// While something waits it does not end by itself: after a minute of holding,
// the withdrawals of the last minute are few because of it, and letting go
// would only spread a false mass withdrawal over minutes.
type brake struct {
	engaged bool
	since   time.Time
	detail  string
	waited  time.Time // when something last waited
	// deaf is until when an operator's release holds.
	deaf time.Time
	lift *ObserverIncident // an operator's release, to be told

	seconds []withdrawals // of the last minute, oldest first
	count   map[withdrawal]int
	total   int
}

// withdrawal is where members were taken out.
type withdrawal struct {
	name registry.Name
	zone string
}

// withdrawals are those noted within a second of at.
type withdrawals struct {
	at time.Time
	by map[withdrawal]int
}

func newBrake() brake { return brake{count: make(map[withdrawal]int)} }

func (b *brake) note(now time.Time, w withdrawal, n int) {
	if n <= 0 || now.Before(b.deaf) {
		return
	}
	last := len(b.seconds) - 1
	if last < 0 || now.Sub(b.seconds[last].at) >= time.Second {
		b.seconds = append(b.seconds, withdrawals{at: now, by: make(map[withdrawal]int)})
		last++
	}
	b.seconds[last].by[w] += n
	b.count[w] += n
	b.total += n
}

// age drops what was noted more than a minute ago.
func (b *brake) age(now time.Time) {
	old := 0
	for old < len(b.seconds) && now.Sub(b.seconds[old].at) > brakeWindow {
		for w, n := range b.seconds[old].by {
			b.total -= n
			if b.count[w] -= n; b.count[w] == 0 {
				delete(b.count, w)
			}
		}
		old++
	}
	b.seconds = b.seconds[old:]
}

func (b *brake) services() int {
	names := make(map[registry.Name]bool)
	for w := range b.count {
		names[w.name] = true
	}
	return len(names)
}

// passes reports whether the withdrawals of the last minute pass the line.
func (b *brake) passes(members int) bool {
	return b.total >= brakeInstances && b.total*100 > brakePercent*members && b.services() >= brakeServices
}

// judgeBrake engages the brake or ends it, and says for which zones it lets go.
func (o *Observers) judgeBrake(now time.Time, region *survey) (released map[string]bool) {
	b := &o.brake
	b.age(now)
	if b.lift != nil {
		o.incidents = append(o.incidents, *b.lift)
		b.lift = nil
	}
	passes := b.passes(o.members)
	switch {
	case passes && !b.engaged:
		b.engaged, b.since = true, now
		b.detail = fmt.Sprintf("%d of the region's %d members in %d services were withdrawn by observation within a minute (the line: over %d %%, %d instances, %d services): further ones wait for a second class, for probers of two other zones, or for an operator",
			b.total, o.members, b.services(), brakePercent, brakeInstances, brakeServices)
		o.incidents = append(o.incidents, ObserverIncident{Kind: BrakeEngaged, Detail: b.detail, At: now})
		b.waited = now
	case passes || o.waiting > 0:
		b.waited = now
	case b.engaged && now.Sub(b.waited) >= brakeWindow:
		b.engaged = false
		o.incidents = append(o.incidents, ObserverIncident{
			Kind: BrakeEngaged, Over: true, At: now, Detail: "nothing has waited for it for a minute",
		})
	}
	if !b.engaged {
		return nil
	}
	for zone := range region.zones {
		if word, ok := region.agree(zone, badShare); ok && len(word.zones) >= 2 {
			if released == nil {
				released = make(map[string]bool)
			}
			released[zone] = true
		}
	}
	return released
}

// ReleaseBrake is an operator's word that what waits may go. It reports whether
// the brake was engaged; for a minute it does not engage again, and what goes
// meanwhile is not counted against it.
func (o *Observers) ReleaseBrake(now time.Time) bool {
	b := &o.brake
	if !b.engaged {
		return false
	}
	b.engaged, b.seconds, b.total = false, nil, 0
	clear(b.count)
	b.deaf = now.Add(brakeWindow)
	b.lift = &ObserverIncident{Kind: BrakeEngaged, Over: true, Detail: "released by an operator", At: now}
	return true
}
