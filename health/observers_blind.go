package health

import (
	"fmt"
	"time"
)

// blindLinger is how long blindness holds after its last sign: as long as a
// result counts as recent, so that what ends it was seen after.
const blindLinger = recentSight

// blindness is why a prober's samples are silence.
type blindness struct {
	zone string    // where the prober stands
	last time.Time // when it last showed
}

// judgeProbers finds the blind: those of a zone together fail nearly all that
// they look at, or one fails a zone whose targets probers of another zone see
// good. Dead zones are left out: of those, failing is the truth.
func (o *Observers) judgeProbers(now time.Time, region *survey) {
	standing := make(map[string]totals)
	for k := range region.lookouts {
		l := &region.lookouts[k]
		t := standing[l.who.Zone]
		for zone, n := range l.by {
			if _, dead := o.dead[zone]; !dead {
				t.take(zone, n)
			}
		}
		standing[l.who.Zone] = t
	}
	for k := range region.lookouts {
		l := &region.lookouts[k]
		t := standing[l.who.Zone]
		zone, by := o.contradicted(l)
		switch {
		case t.blind():
			o.blinds(now, l, t.describe)
		case by.Failing > 0:
			o.blinds(now, l, func() string {
				return fmt.Sprintf("prober %s fails %d of %d targets in zone %s; of those that probers of other zones looked at meanwhile, %d of %d are good: what it says is silence",
					l.who.Name, by.Failing, by.Targets, zone, by.Contested, by.Contested+by.Agreed)
			})
		}
	}
	o.unblind(now, region)
}

// totals are what the probers of one zone see together.
type totals struct {
	all   ProbeCount
	zones map[string]bool
}

func (t *totals) take(zone string, n ProbeCount) {
	t.all.add(n, 1)
	if t.zones == nil {
		t.zones = make(map[string]bool)
	}
	t.zones[zone] = true
}

func (t *totals) blind() bool {
	return t.all.Targets >= fewTargets && len(t.zones) >= 2 && mostly(failingShare, t.all)
}

func (t *totals) describe() string {
	n, of := failingShare(t.all)
	return fmt.Sprintf("probers of this zone fail %d of %d targets in %d zones: what they say is silence", n, of, len(t.zones))
}

// contradicted is the zone, first by name, that the prober fails against the
// word of others.
func (o *Observers) contradicted(l *lookout) (zone string, by ProbeCount) {
	for z, n := range l.by {
		if _, dead := o.dead[z]; !dead && contested(n) && (by.Failing == 0 || z < zone) {
			zone, by = z, n
		}
	}
	return zone, by
}

func (o *Observers) blinds(now time.Time, l *lookout, detail func() string) {
	o.blind[l.who.Name] = blindness{zone: l.who.Zone, last: now}
	o.alarm(now, episode{BlindProbers, l.who.Zone}, detail)
}

// unblind lets those speak again that show no sign of blindness any more. Who
// agrees that a zone is dead was right all along: what it said stands. Who sees
// again was wrong: what it said stays silence.
func (o *Observers) unblind(now time.Time, region *survey) {
	for name, until := range o.silenced {
		if now.Sub(until) > silencedKept {
			delete(o.silenced, name)
		}
	}
	fails := make(map[string]bool)  // some zone that is not dead
	stands := make(map[string]bool) // against a dead zone
	for k := range region.lookouts {
		l := &region.lookouts[k]
		for zone, n := range l.by {
			_, dead := o.dead[zone]
			switch {
			case dead && l.word(zone, failingShare) == agrees:
				stands[l.who.Name] = true
			case !dead && mostly(failingShare, n):
				fails[l.who.Name] = true
			}
		}
	}
	for name, b := range o.blind {
		switch {
		case b.last.Equal(now):
		case stands[name]:
			delete(o.blind, name)
		case now.Sub(b.last) >= blindLinger:
			delete(o.blind, name)
			if !fails[name] {
				o.silenced[name] = now
			}
		default:
			o.episodes[episode{BlindProbers, b.zone}] = now
		}
	}
}
