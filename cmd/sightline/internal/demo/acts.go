package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	viewv1 "github.com/sightlinedev/sightline/proto/sightline/view/v1"
)

// Budgets that the acts check (DESIGN.md §1).
const (
	withdrawnAfterVerdict = 5 * time.Second
	withdrawnAfterKill    = 10 * time.Second
	guardWithin           = 5 * time.Second
	downFor               = 5 * time.Second
	// stock gRPC clients come back by their own back-off: up to 14 s after 12 s of absence (measured).
	backWithin = 30 * time.Second
)

// crash kills one instance without a word and follows its withdrawal to every caller.
func (d *director) crash(ctx context.Context) error {
	const service = 0
	at := place{service, d.rng.IntN(d.cast.services[service].instances)}
	victim, address := d.label(at), d.address(at)
	before, err := d.resolve(ctx, d.cast.services[service].name)
	if err != nil {
		return err
	}
	d.instances[victim].kill()
	killed := time.Now()
	d.say("fault", "%s was killed (SIGKILL), its lease of %s runs out", victim, d.cast.services[service].lease)
	var after *viewv1.View
	err = d.poll(ctx, 2*withdrawnAfterKill, "the verdict on "+victim, func() (bool, error) {
		after, err = d.resolve(ctx, d.cast.services[service].name)
		m := member(after, victim)
		return err == nil && (m == nil || !m.GetListed()), nil
	})
	if err != nil {
		return err
	}
	verdict := time.Now()
	why := "removed"
	if m := member(after, victim); m != nil {
		why = fmt.Sprintf("%s by %s: %s", stateOf(m), m.GetEvidence().GetRule(), m.GetEvidence().GetDetail())
	}
	d.say("health", "%s/%s/%s  %s   view %s -> %s", namespace, d.cast.services[service].name, victim, why,
		seq(before.GetEndpointVersion()), seq(after.GetEndpointVersion()))
	err = d.poll(ctx, withdrawnAfterKill, victim+" to leave every caller", func() (bool, error) {
		return len(d.ledger.holders(d.cast.services[service].name, address)) == 0, nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	gone, holders := time.Now(), d.ledger.holders(d.cast.services[service].name, address)
	d.check(err == nil && gone.Sub(verdict) <= withdrawnAfterVerdict && gone.Sub(killed) <= withdrawnAfterKill,
		"out of %d of %d callers' sets %s after the verdict (budget %s), %s after the kill (budget %s) %s",
		len(d.names)-len(holders), len(d.names), round(gone.Sub(verdict)), withdrawnAfterVerdict,
		round(gone.Sub(killed)), withdrawnAfterKill, stillHolding(holders))
	return d.revive(ctx, at)
}

// revive starts a killed instance again and follows its return to every caller.
func (d *director) revive(ctx context.Context, at place) error {
	name, address, service := d.label(at), d.address(at), d.cast.services[at.service].name
	if err := d.startInstance(at, ""); err != nil {
		return err
	}
	d.say("back", "%s starts again: a new instance, listed from its first good report", name)
	err := d.poll(ctx, backWithin, name+" to be listed again", func() (bool, error) {
		return len(d.ledger.holders(service, address)) == len(d.names), nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil, "listed again by %d of %d callers", len(d.ledger.holders(service, address)), len(d.names))
	return nil
}

// stillHolding names the callers that keep a claim from holding.
func stillHolding(holders []string) string {
	if len(holders) == 0 {
		return ""
	}
	return "still held by " + strings.Join(holders, ", ")
}

// guard makes three of four replicas call themselves unready.
func (d *director) guard(ctx context.Context) error {
	const service = 1
	for i := range d.cast.services[service].instances - 1 {
		if err := d.instances[d.label(place{service, i})].tell("not-serving"); err != nil {
			return err
		}
	}
	d.say("fault", "3 of 4 %s replicas report NOT_SERVING at once", d.cast.services[service].name)
	var v *viewv1.View
	err := d.poll(ctx, guardWithin, "the guard of "+d.cast.services[service].name, func() (bool, error) {
		var err error
		v, err = d.resolve(ctx, d.cast.services[service].name)
		return err == nil && v.GetGuard().GetTripped() && v.GetGuard().GetServing() <= 1, nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	g := v.GetGuard()
	d.check(err == nil, "guard: %s/%s has %d of %d serving, below %d%%: all stay listed, confidence %s", namespace, d.cast.services[service].name,
		g.GetServing(), g.GetMembers(), g.GetFloorPercent(), strings.ToLower(strings.TrimPrefix(v.GetConfidence().String(), "CONFIDENCE_")))
	_, failedBefore, _ := d.ledger.totals()
	d.pause(ctx, 3*time.Second)
	d.samples(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, failed, _ := d.ledger.totals()
	disagree := d.disagreements()
	d.check(len(disagree) == 0 && failed == failedBefore, "every caller still holds all 4, and %d calls failed %s",
		failed-failedBefore, strings.Join(append(disagree, d.newFailures(failedBefore)), "; "))
	for i := range d.cast.services[service].instances - 1 {
		if err := d.instances[d.label(place{service, i})].tell("serving"); err != nil {
			return err
		}
	}
	d.say("back", "the replicas report SERVING again (they return after 15 s of it)")
	return nil
}

// outage kills the control plane and brings it back.
func (d *director) outage(ctx context.Context) error {
	before, err := d.resolve(ctx, d.cast.services[0].name)
	if err != nil {
		return err
	}
	okBefore, failedBefore, _ := d.ledger.totals()
	d.server.kill()
	d.say("fault", "the control plane was killed (SIGKILL); callers keep the view they hold")
	d.pause(ctx, downFor)
	d.samples(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	ok, failed, _ := d.ledger.totals()
	d.check(failed == failedBefore && ok > okBefore, "%d calls during its absence, %d failed %s", ok-okBefore, failed-failedBefore, d.newFailures(failedBefore))
	began := time.Now()
	if err := d.startServer(ctx); err != nil {
		return err
	}
	d.say("server", "back and ready in %s", round(time.Since(began)))
	if err := d.comeBack(ctx); err != nil {
		return err
	}
	after, err := d.resolve(ctx, d.cast.services[0].name)
	if err != nil {
		return err
	}
	d.check(!olderThan(after.GetEndpointVersion(), before.GetEndpointVersion()), "view %s before, %s after: no version went back", seq(before.GetEndpointVersion()), seq(after.GetEndpointVersion()))
	_, failed, _ = d.ledger.totals()
	d.check(failed == failedBefore, "no call failed from the kill to the last client's return %s", d.newFailures(failedBefore))
	return nil
}

// comeBack waits until a change made now reaches every caller: the proof that
// all streams are back. The change is an instance that leaves and returns.
func (d *director) comeBack(ctx context.Context) error {
	service := len(d.cast.services) - 1
	at := place{service, 0}
	name, address := d.label(at), d.address(at)
	err := d.poll(ctx, backWithin, "the instances to hold their leases again", func() (bool, error) {
		v, err := d.resolve(ctx, d.cast.services[service].name)
		return err == nil && len(v.GetMembers()) == d.cast.services[service].instances, nil
	})
	if err != nil {
		return err
	}
	began := time.Now()
	if err := d.instances[name].tell("not-serving"); err != nil {
		return err
	}
	err = d.poll(ctx, backWithin, "a change to reach every caller", func() (bool, error) {
		return len(d.ledger.holders(d.cast.services[service].name, address)) == 0, nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil, "all %d callers follow again: a withdrawal reached the last of them %s after it was made", len(d.names), round(time.Since(began)))
	return d.instances[name].tell("serving")
}

// agreement compares what every caller holds with what Resolve says, once
// nothing moves any more.
func (d *director) agreement(ctx context.Context) error {
	var differences []string
	err := d.poll(ctx, 2*backWithin, "all surfaces to agree", func() (bool, error) {
		differences = nil
		for _, service := range d.cast.names() {
			v, err := d.resolve(ctx, service)
			if err != nil {
				return false, nil
			}
			var listed []string
			for _, m := range v.GetMembers() {
				if m.GetListed() && len(m.GetPorts()) > 0 {
					listed = append(listed, fmt.Sprintf("%s:%d", m.GetAddress(), m.GetPorts()[0].GetNumber()))
				}
			}
			differences = append(differences, d.ledger.disagreeing(service, listed)...)
		}
		return len(differences) == 0, nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.check(err == nil, "DNS, Resolve, delta and state of the world agree on every set %s", strings.Join(differences, "; "))
	return nil
}

// newFailures says what calls failed of, if any did since there were so many.
func (d *director) newFailures(before int) string {
	_, failed, _ := d.ledger.totals()
	if failed == before {
		return ""
	}
	return "(" + strings.Join(d.ledger.failures(), ", ") + ")"
}

// samples waits until every caller has reported what it has done until now.
func (d *director) samples(ctx context.Context) { wait(ctx, 2*sampleEvery) }

func member(v *viewv1.View, label string) *viewv1.Member {
	for _, m := range v.GetMembers() {
		if m.GetLabel() == label {
			return m
		}
	}
	return nil
}

func stateOf(m *viewv1.Member) string {
	return strings.ToLower(strings.TrimPrefix(m.GetState().String(), "STATE_"))
}

// seq is a version as people read it.
func seq(version string) string {
	_, s, _ := strings.Cut(version, ".")
	return s
}

func round(t time.Duration) time.Duration { return t.Round(time.Millisecond) }
